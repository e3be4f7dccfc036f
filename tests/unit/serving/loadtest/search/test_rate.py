import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.loadtest.rate import highest_rate


@given(capacity=st.floats(2, 1e5), start=st.floats(1, 1e4))
def test_finds_a_capacity_within_the_resolution(capacity: float, start: float) -> None:
    found = highest_rate(lambda rate: rate <= capacity, start=start)
    assert found.rate_per_s is not None
    assert found.failed_per_s is not None
    assert found.rate_per_s <= capacity < found.failed_per_s <= 1.0501 * found.rate_per_s
    assert found.num_probes < 40


def test_nothing_holds() -> None:
    found = highest_rate(lambda rate: False, start=100)
    assert found.rate_per_s is None
    assert found.failed_per_s == pytest.approx(1, rel=0.6)


def test_everything_holds() -> None:
    found = highest_rate(lambda rate: True, start=100)
    assert found.failed_per_s is None
    assert found.rate_per_s is not None
    assert found.rate_per_s >= 1e6


def test_a_rate_that_held_by_luck_is_not_confirmed() -> None:
    lucky = iter([True])

    def holds(rate: float) -> bool:
        return rate <= 100 or (rate > 150 and next(lucky, False))

    found = highest_rate(holds, start=160)
    assert found.rate_per_s is not None
    assert found.rate_per_s <= 100
