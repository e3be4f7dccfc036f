"""Searches for the highest rate that meets a target: bracket it, bisect, and confirm the result."""

from collections.abc import Callable
from dataclasses import dataclass

_MIN_RATE = 1.0
_MAX_RATE = 1e6


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of a search.

    Attributes:
        rate_per_s: highest rate that held, each time; None when not even one request per second did.
        failed_per_s: lowest rate that was tried and did not hold; None when all did.
        num_probes: rates that were tried, repetitions included.
        ended: why the search ended early, without trying again what was found; empty if it did not.
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
    """Search for the highest rate at which something holds.

    Args:
        holds: measures at a rate. It may err near the bound; so the rate that is found is tried again.
        start: a first guess, above 0.
        lowest: no rate below it is tried; as high as `start`, the search is over where `start` does not hold.
        step: factor between the rates of the bracket.
        resolution: the search ends when a rate that fails is this much above one that holds.
        confirmations: how often in a row the rate that was found has to hold again; where it does not, it counts as
            failed, and a lower one is tried, farther below each time.
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
    """A rate that holds, and the next one, which does not."""
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
