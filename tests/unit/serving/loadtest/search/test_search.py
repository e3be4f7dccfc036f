"""The search for the highest rate that meets a bound."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.loadtest.config import Slo
from rankline.serving.loadtest.rate import SloSearch, highest_rate, holds_slo
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runs import Load
from tests.factories.reports import result_of


@given(capacity=st.floats(2, 1e5), start=st.floats(1, 1e4))
def test_search_finds_the_capacity_within_its_resolution(capacity: float, start: float) -> None:
    found = highest_rate(lambda rate: rate <= capacity, start=start)
    assert found.rate_per_s is not None
    assert found.failed_per_s is not None
    assert found.rate_per_s <= capacity < found.failed_per_s <= 1.0501 * found.rate_per_s
    assert found.num_probes < 40


def test_search_where_no_rate_holds() -> None:
    found = highest_rate(lambda rate: False, start=100)
    assert found.rate_per_s is None
    assert found.failed_per_s == pytest.approx(1, rel=0.6)


def test_search_where_every_rate_holds() -> None:
    found = highest_rate(lambda rate: True, start=100)
    assert found.failed_per_s is None
    assert found.rate_per_s is not None
    assert found.rate_per_s >= 1e6


def test_search_does_not_confirm_a_lucky_rate() -> None:
    lucky = iter([True])

    def holds(rate: float) -> bool:
        return rate <= 100 or (rate > 150 and next(lucky, False))

    found = highest_rate(holds, start=160)
    assert found.rate_per_s is not None
    assert found.rate_per_s <= 100


BOUND = Slo.parse("p99=10ms")


def result(latency_ms: float, *, answered: int = 400, **errors: int) -> LoadResult:
    counts = {"num_due": 400, "num_answered": 400, "errors": Counter(errors)}
    return result_of(Load(batch_size=1, rate_per_s=100), [latency_ms] * answered, counts=counts)


def test_slo_holds_only_for_a_server_that_keeps_up_and_answers() -> None:
    slo = Slo.parse("p99=10ms")
    assert holds_slo(result(9), slo)
    assert holds_slo(result(9, answered=397, UNAVAILABLE=3), slo)
    assert not holds_slo(result(11), slo)
    assert not holds_slo(result(9, answered=395, UNAVAILABLE=5), slo)
    assert not holds_slo(result(9, answered=370), slo)  # the others have not come back
    assert not holds_slo(result(9, answered=300), slo)  # too few for a p99


class OfRates:
    """A search of rates whose p99 is given, in place of a server."""

    def __init__(self, p99_ms: Callable[[float], float], *, problem: str = "") -> None:
        self.rates: list[float] = []
        self.said: list[str] = []
        self._p99_ms, self._problem = p99_ms, problem
        self.search = SloSearch(BOUND, self._measure, self.said.append)

    def _measure(self, rate_per_s: float) -> LoadResult:
        self.rates.append(rate_per_s)
        load = Load(batch_size=1, rate_per_s=round(rate_per_s, 1))
        return result_of(load, [self._p99_ms(rate_per_s)] * 400, problem=self._problem)


@pytest.mark.parametrize(
    ("problem", "ended"),
    [("the client was the bottleneck", "even at lower rates"), ("", "p99 does not decrease at lower rates")],
)
def test_slo_search_ends_when_lower_rates_do_not_help(problem: str, ended: str) -> None:
    tested = OfRates(lambda rate: 30.0, problem=problem)
    found = tested.search.run()
    assert tested.rates == [100, 50, 25]
    assert (found.rate_per_s, found.failed_per_s, found.num_probes) == (None, 25, 3)
    assert ended in found.ended
    assert all("p99 30" in said and said.endswith("missed") for said in tested.said)
    assert all(("bottleneck" in said) == bool(problem) for said in tested.said)


def test_slo_search_follows_a_shortening_queue_down() -> None:
    tested = OfRates(lambda rate: rate * 2)
    found = tested.search.run()
    assert found.rate_per_s == pytest.approx(5, rel=0.06)
    assert not found.ended
    assert tested.said[-1].endswith("met")


def test_slo_search_ignores_a_late_client_under_the_bound() -> None:
    tested = OfRates(lambda rate: 1.0 if rate <= 150 else 20.0, problem="the client was the bottleneck")
    found = tested.search.run()
    assert found.rate_per_s == pytest.approx(150, rel=0.06)
    assert not found.ended


def test_interrupted_slo_search_keeps_its_results() -> None:
    def p99_ms(rate: float) -> float:
        if rate == 800:
            raise KeyboardInterrupt
        return 1.0

    tested = OfRates(p99_ms)
    with pytest.raises(KeyboardInterrupt):
        tested.search.run()
    found = tested.search.so_far("Ctrl-C")
    assert (found.rate_per_s, found.failed_per_s, found.num_probes, found.ended) == (400, None, 3, "Ctrl-C")
