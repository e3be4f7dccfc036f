import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.benchmark.records import SliceRecord
from serving.benchmark.windows import Window, is_stable, windows_of


def record_of(latency_ns: int, count: int) -> SliceRecord:
    record = SliceRecord(num_answered=count)
    for _ in range(count):
        record.latency.record(latency_ns)
    return record


def windows(*figures: tuple[float, int]) -> list[Window]:
    return [Window(rate_per_s=rate, p50_ns=p50) for rate, p50 in figures]


def test_three_in_a_row_have_to_agree_in_rate_and_median() -> None:
    settled = (100.0, 1000), (105.0, 1040), (109.0, 1090)
    assert is_stable(windows((9.0, 9), *settled), 0.1)
    assert not is_stable(windows(*settled[:2]), 0.1)
    assert not is_stable(windows(*settled, (100.0, 1200)), 0.1)
    assert not is_stable(windows(*settled, (120.0, 1090)), 0.1)
    assert is_stable(windows((120.0, 1200), *settled), 0.1)


@settings(deadline=None)  # an HDR histogram takes a while to make, and longer on a busy machine
@given(st.lists(st.integers(0, 40), max_size=30), st.sampled_from([0.25, 1.0]))
def test_each_window_is_long_enough_and_has_enough_answers(counts: list[int], window_s: float) -> None:
    slices = [record_of(1000 * (number + 1), count) for number, count in enumerate(counts)]
    found = windows_of(slices, window_s)
    assert len(found) <= len(slices) * 0.25 / window_s
    assert len(found) * 50 <= sum(counts)


def test_a_window_has_the_rate_and_median_of_its_slices() -> None:
    first = [record_of(1000, 20), record_of(1000, 20), record_of(2000, 20), record_of(2000, 60)]
    (window,) = windows_of([*first, record_of(5, 10)], 1.0)
    assert window.rate_per_s == 120
    assert window.p50_ns == pytest.approx(2000, rel=0.001)
