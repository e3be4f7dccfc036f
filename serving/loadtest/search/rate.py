"""Search for the highest rate that meets a target: bracket it, bisect, and confirm the result."""

from collections.abc import Callable
from dataclasses import dataclass

_MIN_RATE = 1.0
_MAX_RATE = 1e6


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of a search.

    Attributes:
        rate_per_s: highest rate that met the target each time; None if not even the lowest rate did.
        failed_per_s: lowest tested rate that missed the target; None if all met it.
        num_probes: number of tests, including repetitions.
        ended: why the search ended early, without confirming the result; empty if it did not.
    """

    rate_per_s: float | None
    failed_per_s: float | None
    num_probes: int
    ended: str = ""


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

    Args:
        holds: test of a rate. It may err near the bound, so the result is confirmed by repetition.
        start: first guess, above 0.
        lowest: lowest rate to test. If equal to `start`, the search ends if `start` fails.
        step: factor between the rates of the bracket.
        resolution: relative distance between a rate that passes and a rate that fails at which the search ends.
        confirmations: number of consecutive repetitions that the result has to pass. If it fails, it counts as failed,
            and a lower rate is tested, by larger steps each time.
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
    """Return a rate that passes, and the next rate, which fails."""
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
