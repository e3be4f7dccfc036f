"""What a picture of a report shows: the axis, the lines over it, and the latency of every share of requests."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from serving.benchmark.percentiles import samples_needed
from serving.benchmark.report import LoadResult

_Item = TypeVar("_Item")
MOST_SHOWN = 8
"""Ticks, and curves; more would cover each other."""
PERCENTILES = {"p50": "p50_ms", "p95": "p95_ms", "p99": "p99_ms"}
SHARES = (0.5, 0.9, 0.99, 0.999, 0.9999)
AXES = {
    "rate_per_s": "requests per second offered",
    "concurrency": "requests in flight",
    "batch_size": "rows in a request",
}


def varying(results: Sequence[LoadResult]) -> str:
    """The figure of the load to draw others over: a key of `AXES`."""
    if any(result.rate_per_s is not None for result in results):
        return "rate_per_s"
    return "concurrency" if len({result.concurrency for result in results}) > 1 else "batch_size"


def series(results: Sequence[LoadResult], key: str) -> dict[str, list[LoadResult]]:
    """Results that differ in `key` only, in its order, under the batch size where that differs too."""
    found: dict[str, list[LoadResult]] = {}
    for result in sorted(results, key=lambda result: float(getattr(result, key))):
        found.setdefault("" if key == "batch_size" else f"{result.batch_size:,} rows", []).append(result)
    return found


def curves(results: Sequence[LoadResult]) -> dict[str, tuple[list[float], list[float]]]:
    """Latency of each share of the requests, as far as the samples go.

    Returns:
        Name of some loads, evenly chosen → 1 / (1 - share), and milliseconds. What states no latency has no curve.
    """
    found = {}
    for result in some(results):
        values, counts = result.latencies().counts()
        if not len(values) or result.mean_ms is None:
            continue
        total = int(counts.sum())
        shares = np.cumsum(counts) / total
        known = [share for share in SHARES if samples_needed(share) <= total]
        shown = shares < (known[-1] if known else SHARES[0])
        found[result.load.name.replace("_", " ")] = (
            (1 / (1 - shares[shown])).tolist(),
            (values[shown] / 1e6).tolist(),
        )
    return found


def some(items: Sequence[_Item]) -> Sequence[_Item]:
    """At most `MOST_SHOWN` of them, evenly chosen."""
    return items[:: -(-len(items) // MOST_SHOWN) or 1]
