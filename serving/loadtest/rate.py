"""Search for the highest rate that meets a latency target: bracket it, bisect, and confirm the result."""

from collections.abc import Callable
from dataclasses import replace

from rankline.serving.loadtest.config import LoadConfig, Slo
from rankline.serving.loadtest.measurement import Bench
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runs import Load, SearchResult
from rankline.serving.loadtest.stats.metrics import METRICS
from rankline.serving.loadtest.stats.percentiles import samples_needed
from rankline.serving.loadtest.summary import number, reached

_FIRST_RATE = 100.0
_KEPT_UP = 0.95  # fraction of the offered rate below which the server falls behind
_ALIKE = 3  # number of consecutive halved rates without improvement after which the search stops
_NEARER = 0.8


def duration_s(rate_per_s: float, slo: Slo, config: LoadConfig) -> float:
    """Return a measurement's duration: `min_duration_s`, or longer if the target's percentile needs more samples."""
    return max(config.min_duration_s, 1.2 * samples_needed(slo.level) / rate_per_s)


def measure_rate(bench: Bench, batch_size: int, rate_per_s: float, slo: Slo, config: LoadConfig) -> LoadResult:
    rate_per_s = round(rate_per_s, 1)
    seconds = duration_s(rate_per_s, slo, config)
    config = replace(config, min_duration_s=seconds, time_limit_s=seconds)
    return bench.measure(Load(batch_size=batch_size, rate_per_s=rate_per_s, arrivals=config.arrivals), config)


def holds_slo(result: LoadResult, slo: Slo) -> bool:
    value_ms = result.value(slo.metric)
    return value_ms is not None and value_ms <= slo.bound_ms and kept_up(result, slo)


def kept_up(result: LoadResult, slo: Slo) -> bool:
    """Whether enough of the scheduled requests were answered to judge the percentile."""
    num_failed = sum(result.errors.values()) + result.num_unsent
    return num_failed <= (1 - slo.level) * result.num_due and result.num_requests >= _KEPT_UP * result.num_due


class SloSearch:
    """A search for the highest rate that meets a latency target. If it ends early, tested rates remain available."""

    def __init__(self, slo: Slo, measure: Callable[[float], LoadResult], say: Callable[[str], None]) -> None:
        self._slo, self._measure, self._say = slo, measure, say
        self._tested: list[LoadResult] = []

    def run(self) -> SearchResult:
        try:
            return highest_rate(self._holds, start=_FIRST_RATE)
        except _InVainError as error:
            return self.so_far(str(error))

    def so_far(self, ended: str) -> SearchResult:
        tested = [(result.rate_per_s or 0.0, holds_slo(result, self._slo)) for result in self._tested]
        failed = min((rate for rate, held in tested if not held), default=None)
        held = max((rate for rate, held in tested if held and (failed is None or rate < failed)), default=None)
        return SearchResult(rate_per_s=held, failed_per_s=failed, num_probes=len(tested), ended=ended)

    def _holds(self, rate_per_s: float) -> bool:
        result = self._measure(rate_per_s)
        self._tested.append(result)
        held = holds_slo(result, self._slo)
        late = ", the client was the bottleneck" if result.problem else ""
        outcome = f"{reached(result, self._slo)}{late}, {'met' if held else 'missed'}"
        self._say(f"{number(result.rate_per_s)} requests/s: {outcome}")
        if not any(holds_slo(tested, self._slo) for tested in self._tested):
            self._check_use_of_lower_rates()
        return held

    def _check_use_of_lower_rates(self) -> None:
        """Raise an error if halving the rate no longer reduces the percentile: latency is not caused by queueing."""
        values_ms = [result.value(self._slo.metric) for result in self._tested[-_ALIKE:]]
        found = [value_ms for value_ms in values_ms if value_ms is not None]
        if len(found) < _ALIKE or min(found[1:]) < _NEARER * found[0]:
            return
        if self._tested[-1].problem:
            raise _InVainError(
                "the client, not the server, is the bottleneck: it sends requests late even at lower rates. Stop other "
                "programs on this machine, or measure from another machine with --url"
            )
        raise _InVainError(f"{METRICS[self._slo.metric].label} does not decrease at lower rates")


class _InVainError(Exception):
    pass


_MIN_RATE = 1.0
_MAX_RATE = 1e6


def highest_rate(
    holds: Callable[[float], bool],
    *,
    start: float,
    lowest: float = _MIN_RATE,
    step: float = 2.0,
    resolution: float = 0.05,
    confirmations: int = 2,
) -> SearchResult:
    """Search for the highest rate at which `holds` returns True.

    `holds` may err near the bound, so the result has to pass again as many times as `confirmations`. If it fails, a
    lower rate is tested, by larger steps each time.

    Args:
        lowest: lowest rate to test. If equal to `start`, the search ends if `start` fails.
        step: factor between the rates of the bracket.
        resolution: relative distance between a rate that passes and a rate that fails at which the search ends.
    """
    num_probes = 0

    def probe(rate: float) -> bool:
        nonlocal num_probes
        num_probes += 1
        return holds(rate)

    low, high = _bracket(probe, start, lowest, step)
    back = 1 + resolution
    while low is not None:
        while high is not None and high > low * (1 + resolution):
            middle = (low * high) ** 0.5
            if probe(middle):
                low = middle
            else:
                high = middle
        if high is None or all(probe(low) for _ in range(confirmations)):
            break
        high, low, back = low, low / back, back**2
        if low < lowest:
            low = None
    return SearchResult(rate_per_s=low, failed_per_s=high, num_probes=num_probes)


def _bracket(
    probe: Callable[[float], bool], start: float, lowest: float, step: float
) -> tuple[float | None, float | None]:
    """Return a passing rate and the next higher rate, which fails. Either is None if no such rate was found."""
    rate = start
    if probe(rate):
        while rate < _MAX_RATE:
            if not probe(step * rate):
                return rate, step * rate
            rate *= step
        return rate, None
    while rate / step >= lowest:
        rate /= step
        if probe(rate):
            return rate, step * rate
    return None, rate
