import numpy as np
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.loadtest.stats.counters import LatencyHistogram

HOUR_NS = 3600 * 10**9
SAMPLES = st.lists(st.integers(1, HOUR_NS), min_size=1, max_size=30)


def histogram_of(samples: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for sample in samples:
        histogram.record(sample)
    return histogram


@given(SAMPLES)
def test_histogram_buckets_and_encoding_are_those_of_hdrhistogram(samples: list[int]) -> None:
    whole = HdrHistogram(1, HOUR_NS, 3)
    for sample in samples:
        whole.record_value(sample)
        assert histogram_of([sample]).at_rank(1) == whole.get_highest_equivalent_value(sample)
    assert histogram_of(samples).encode() == whole.encode()
    assert histogram_of(samples).max_ns == whole.get_max_value()


@given(SAMPLES)
def test_histogram_ranks_are_samples_within_a_thousandth(samples: list[int]) -> None:
    histogram = histogram_of(samples)
    for rank, sample in enumerate(sorted(samples), 1):
        assert sample <= histogram.at_rank(rank) <= sample * 1.001
    assert histogram.total == len(samples)
    assert max(samples) <= histogram.max_ns <= max(samples) * 1.001
    assert abs(histogram.mean_ns - np.mean(samples)) <= 0.001 * np.mean(samples)


@given(SAMPLES, SAMPLES)
def test_histograms_merge(mine: list[int], its: list[int]) -> None:
    merged = LatencyHistogram.merged([histogram_of(mine), histogram_of(its)])
    assert merged == histogram_of(mine + its)
    assert merged.max_ns == histogram_of(mine + its).max_ns


@given(SAMPLES, st.integers(1, 30))
def test_histogram_counts_above(samples: list[int], rank: int) -> None:
    histogram = histogram_of(samples)
    value = histogram.at_rank(min(rank, len(samples)))
    assert histogram.above(value) == sum(histogram_of([sample]).at_rank(1) > value for sample in samples)


def test_histogram_counts_out_of_range_at_its_ends() -> None:
    histogram = histogram_of([-5, 2 * HOUR_NS])
    assert histogram.total == 2
    assert histogram.at_rank(1) == 0
    assert HOUR_NS <= histogram.max_ns <= HOUR_NS * 1.001


def test_histogram_file_is_read_by_hdrhistogram() -> None:
    text = histogram_of([1_000_000, 2_000_000]).to_log(["movielens"], duration_s=3.0)
    assert text.startswith("#[movielens]\n#[Histogram log format version 1.3]\n")
    start, length, largest, encoded = text.splitlines()[-1].split(",")
    assert (float(start), float(length)) == (0, 3)
    assert 2 <= float(largest) <= 2.002
    assert HdrHistogram.decode(encoded).get_total_count() == 2
