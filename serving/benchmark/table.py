"""The table of a report for the terminal, the page and the container: a row for each load."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.benchmark.metrics import CLOSED, METRICS, OPEN, Metric
from serving.benchmark.report import LoadResult

KEYS = ("rows", "offered/s", "in flight")
"""Headings of what tells loads apart."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A figure, or a property of the load.

    Attributes:
        text: for narrow columns; latencies have two places.
        value: None where there is none, and of what tells loads apart.
        bounds: of the value at 95 % confidence, each None where the samples give none; None of what never has bounds.
    """

    text: str
    value: float | None = None
    bounds: tuple[float | None, float | None] | None = None


def columns(results: Sequence[LoadResult]) -> dict[str, list[Cell]]:
    """Heading → a cell for each load: what tells the loads apart, then each metric that has a title."""
    is_open = any(result.rate_per_s is not None for result in results)
    shown = {"rows": [Cell(text=f"{result.batch_size:,}") for result in results]}
    if is_open:
        shown["offered/s"] = [Cell(text=f"{result.rate_per_s or 0:,.0f}") for result in results]
    elif any(result.concurrency != 1 for result in results):
        shown["in flight"] = [Cell(text=str(result.concurrency)) for result in results]
    for metric in METRICS.values():
        if metric.title and metric.loop in (None, OPEN if is_open else CLOSED):
            shown[metric.title] = [_cell(result, metric) for result in results]
    return shown


def number(value: object) -> str:
    """Format a value: four digits of a fraction, all digits of a count, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _cell(result: LoadResult, metric: Metric) -> Cell:
    found = result.metrics[metric.name]
    return Cell(
        text=f"{found.value:.2f}" if metric.is_latency and found.value is not None else number(found.value),
        value=found.value,
        bounds=(found.low, found.high) if metric.has_interval and found.value is not None else None,
    )
