import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.loadtest.stats.counters import SLICE_S, SliceRecord, Windows

COUNTS = st.lists(st.integers(0, 40), max_size=30)


def record_of(latency_ns: int, count: int) -> SliceRecord:
    record = SliceRecord(num_answered=count)
    for _ in range(count):
        record.latency.record(latency_ns)
    return record


def followed(slices: list[SliceRecord], window_s: float = 1.0, *, at_once: bool = True) -> Windows:
    """Windows of a run that was looked at once, or after each slice."""
    found = Windows(window_s, tolerance=0.1)
    for end in [len(slices)] if at_once else range(1, len(slices) + 1):
        found.follow(slices[:end])
    return found


@pytest.mark.parametrize(
    ("windows", "is_stable"),
    [
        ([(60, 1000), (63, 1040), (65, 1090)], True),
        ([(60, 1000), (63, 1040)], False),
        ([(60, 1000), (63, 1040), (60, 1200)], False),  # the median
        ([(60, 1000), (63, 1040), (72, 1090)], False),  # the rate
    ],
)
def test_stability_needs_three_windows_that_agree_in_rate_and_median(
    windows: list[tuple[int, int]], is_stable: bool
) -> None:
    slices = [record_of(latency_ns, count) for count, latency_ns in windows]
    assert followed(slices, window_s=SLICE_S).is_stable == is_stable


@given(COUNTS, st.sampled_from([0.25, 1.0]))
def test_windows_are_long_enough_and_have_enough_answers(counts: list[int], window_s: float) -> None:
    bounds = followed([record_of(1000, count) for count in counts], window_s).bounds
    assert [begin for begin, _ in bounds] == [0, *(end for _, end in bounds)][: len(bounds)]
    for begin, end in bounds:
        is_enough = [
            (last - begin) * SLICE_S >= window_s and sum(counts[begin:last]) >= 50 for last in range(begin + 1, end + 1)
        ]
        assert is_enough == [False] * (end - begin - 1) + [True]


@given(COUNTS)
def test_windows_are_the_same_when_followed_slice_by_slice(counts: list[int]) -> None:
    slices = [record_of(1000 * (number // 9 + 1), count) for number, count in enumerate(counts)]
    once, each = followed(slices), followed(slices, at_once=False)
    assert (each.bounds, each.is_stable) == (once.bounds, once.is_stable)
    assert once.num_answered == each.num_answered == sum(counts)


def test_late_answers_count_when_the_next_window_ends() -> None:
    slices = [record_of(1000, 60) for _ in range(12)]
    found = followed(slices)
    assert found.is_stable
    slices[11].merge(record_of(9_000_000, 900))
    found.follow(slices)
    assert found.is_stable  # nothing has ended since
    slices += [record_of(1000, 60) for _ in range(4)]
    found.follow(slices)
    assert len(found.bounds) == 4
    assert not found.is_stable
    slices += [record_of(1000, 60) for _ in range(12)]
    found.follow(slices)
    assert found.is_stable  # only the last three count
