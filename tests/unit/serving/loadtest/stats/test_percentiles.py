import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.loadtest.stats.counters import LatencyHistogram
from rankline.serving.loadtest.stats.metrics import METRICS
from rankline.serving.loadtest.stats.percentiles import interval_ranks, mean_interval, percentile, samples_needed

LEVELS = [metric.level for metric in METRICS.values() if metric.level is not None]


def slices_of(samples: np.ndarray, count: int = 10) -> list[LatencyHistogram]:
    slices = []
    for part in np.array_split(samples, count):
        slices.append(LatencyHistogram())
        for sample in part:
            slices[-1].record(int(sample))
    return slices


def chance_below(num_samples: int, level: float, rank: int) -> float:
    """P(B < rank) of a binomial B, term by term."""
    return sum(math.comb(num_samples, k) * level**k * (1 - level) ** (num_samples - k) for k in range(rank))


@given(num_samples=st.integers(1, 300), level=st.sampled_from([0.3, *LEVELS]))
def test_interval_ranks_are_the_tightest_with_enough_confidence(num_samples: int, level: float) -> None:
    low, high = interval_ranks(num_samples, level)
    assert 0 <= low < high <= num_samples + 1
    assert chance_below(num_samples, level, low) <= 0.025 + 1e-9
    assert chance_below(num_samples, level, low + 1) > 0.025 - 1e-9
    if high <= num_samples:
        assert 1 - chance_below(num_samples, level, high) <= 0.025 + 1e-9
    assert 1 - chance_below(num_samples, level, high - 1) > 0.025 - 1e-9


@pytest.mark.parametrize("level", LEVELS)
def test_samples_needed_are_the_fewest_whose_largest_bounds_the_percentile(level: float) -> None:
    needed = samples_needed(level)
    assert interval_ranks(needed, level)[1] <= needed
    assert interval_ranks(needed - 1, level)[1] == needed  # one more than there are


def test_percentile_of_too_few_samples_has_a_reason() -> None:
    samples = np.arange(1, 368) * 1000
    held = percentile(slices_of(samples), 0.99)
    assert held.value is held.low is held.high is None
    assert held.reason == "367 samples, at least 368 required"
    assert percentile(slices_of(np.arange(1, 369) * 1000), 0.99).reason == ""
    assert percentile([], 0.5).reason


@given(st.lists(st.integers(1, 10**10), min_size=100, max_size=400), st.sampled_from([0.5, 0.9, 0.95]))
def test_percentile_is_the_sample_of_its_rank_within_its_interval(samples: list[int], level: float) -> None:
    found = percentile(slices_of(np.asarray(samples)), level)
    right = sorted(samples)[math.ceil(level * len(samples)) - 1]
    assert found.value is not None
    assert right <= found.value <= 1.001 * right
    assert (found.low or 0) <= found.value <= (found.high or math.inf)


def test_interval_holds_the_true_percentile_at_its_confidence() -> None:
    rng = np.random.default_rng(1)
    true = -math.log(0.05) * 1e6
    runs = [percentile(slices_of(rng.exponential(1e6, 400)), 0.95) for _ in range(200)]
    held = [(run.low or 0) <= true * 1.001 and true <= (run.high or math.inf) for run in runs]
    assert np.mean(held) > 0.92


def test_interval_is_wider_where_slow_moments_cluster() -> None:
    rng = np.random.default_rng(0)
    samples = np.where(rng.random(5000) < 0.03, 9e6, 1e6) * rng.uniform(1, 1.2, 5000)
    scattered = percentile(slices_of(samples), 0.95)
    together = percentile(slices_of(np.sort(samples)), 0.95)  # all slow ones in the last slices
    assert scattered.value == together.value
    assert scattered.high is not None
    assert scattered.high < 2e6
    assert together.high is None or together.high > 9e6


def test_interval_is_wider_where_slow_moments_outlast_a_slice() -> None:
    rng = np.random.default_rng(0)
    slow, quick = (slices_of(rng.exponential(mean, 1000), 10) for mean in (1.3e6, 1e6))
    lasting = percentile([*slow, *quick], 0.5)
    passing = percentile([part for pair in zip(slow, quick, strict=True) for part in pair], 0.5)
    assert lasting.value == passing.value
    widths = [found.high - found.low for found in (passing, lasting) if found.high and found.low]
    assert widths[1] > 1.5 * widths[0]


def test_intervals_of_two_runs_agree_despite_slow_moments() -> None:
    rng = np.random.default_rng(0)

    def run() -> tuple[int, int]:
        load, slices = rng.normal(), []
        for _ in range(24):
            load = 0.7 * load + 0.51**0.5 * rng.normal()
            slices += slices_of(rng.exponential(1e6 * math.exp(0.2 * load), 60), 1)
        found = percentile(slices, 0.5)
        assert found.low is not None
        assert found.high is not None
        return found.low, found.high

    runs = [run() for _ in range(121)]
    agree = [one[0] <= other[1] and other[0] <= one[1] for one, other in itertools.pairwise(runs)]
    assert np.mean(agree) > 0.9


def test_mean_interval_holds_the_mean_at_its_confidence() -> None:
    rng = np.random.default_rng(0)
    for alike in (0.0, 0.5):
        held = 0
        for _ in range(400):
            noise = [0.0]
            for step in rng.normal(size=60):
                noise.append(alike * noise[-1] + step)
            bounds = mean_interval([100 + value for value in noise[-40:]])
            assert bounds is not None
            held += bounds[0] <= 100 <= bounds[1]
        assert 0.90 < held / 400 < 0.99


def test_mean_interval_of_few_values_is_that_of_student() -> None:
    low, high = mean_interval([1.0, 3.0, 3.0, 1.0, 1.0, 3.0, 3.0, 1.0]) or (0, 0)
    assert (low + high) / 2 == pytest.approx(2)
    assert high - 2 == pytest.approx(2.365 * (8 / 7 / 8) ** 0.5, rel=0.001)  # neighbours differ as often as not
    low, high = mean_interval([10.0, 11.0, 12.0, 13.0]) or (0, 0)  # as alike as three independent values
    assert (high - low) / 2 == pytest.approx(4.3027 * (5 / 3 / 3) ** 0.5, rel=1e-4)
    assert mean_interval([1.0, 2.0, 3.0]) is None
    assert mean_interval([5.0] * 4) == (5.0, 5.0)
    assert mean_interval([0.2] * 4) == pytest.approx((0.2, 0.2))
    assert (mean_interval([0.0, 0.0, 0.0, 1.0]) or (-1, -1))[0] == 0  # a rate is not below 0


def test_percentile_ignores_empty_slices() -> None:
    samples = np.random.default_rng(0).exponential(1e6, 2000)
    slices = slices_of(samples, 8)
    assert percentile([LatencyHistogram(), *slices, LatencyHistogram()], 0.9) == percentile(slices, 0.9)
    whole = slices_of(samples, 1)
    low, high = interval_ranks(2000, 0.9)
    found = percentile(whole, 0.9)
    assert (found.low, found.high) == (whole[0].at_rank(low), whole[0].at_rank(high))


def test_interval_may_lack_a_bound() -> None:
    samples = np.sort(np.random.default_rng(0).exponential(1e6, 400))
    together = percentile(slices_of(samples, 4), 0.5)  # as if there were hardly any
    assert together.value is not None
    assert (together.low, together.high) == (None, None)
