"""Summary table and sentences of a report, shared by the page, the terminal and the container."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rankline.serving.loadtest.config import Slo
from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.runs import rows_in_words as rows_in_words
from rankline.serving.loadtest.server_breakdown import Breakdown
from rankline.serving.loadtest.stats.metrics import CLOSED, METRICS, OPEN, Metric
from rankline.serving.loadtest.stats.percentiles import samples_needed

KEYS = ("rows", "offered/s", "in flight")
"""Headings of the columns that identify a load."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A table cell with a measured value or a property of the load.

    Attributes:
        text: text for narrow columns; latencies have two decimal places.
        value: the figure; None if it is not reported, or for a property of the load.
        bounds: bounds of the value at 95 % confidence; None for figures that never have bounds.
    """

    text: str
    value: float | None = None
    bounds: tuple[float | None, float | None] | None = None


def columns(results: Sequence[LoadResult]) -> dict[str, list[Cell]]:
    """Return a dict of table cells keyed by column heading. Columns that identify a load come first, followed by
    metrics with a title.
    """
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
    """Format a value with about four significant digits for floats, all digits for integers, and a dash for None."""
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


def conclusion(report: BenchmarkReport) -> str:
    """Summarize the report in one sentence: the search results, or the first and fastest loads if there was no search,
    and any problems.
    """
    if report.searches:
        said = list(searched(report))
    else:
        measured = [result for result in report.bench if result.num_requests]
        most = max(measured, key=lambda result: result.rows_per_s, default=None)
        said = list(dict.fromkeys(_figures_of(result) for result in (*measured[:1], *([most] if most else []))))
    said += [f"the machine was busy ({report.busy})"] if report.busy else []
    said += ["problems were found"] if report.problems else []
    return "; ".join(said) or "nothing was measured"


def _figures_of(result: LoadResult) -> str:
    """Describe the results of a load, such as “1 row: p50 1.4 ms, 719 rows/s”."""
    levels = ("p50_ms",) if result.rate_per_s is None else ("p50_ms", "p99_ms")
    reached = [f"{METRICS[name].label} {number(ms)} ms" for name in levels if (ms := result.value(name)) is not None]
    return f"{result.load.words}: {', '.join([*reached, f'{number(result.rows_per_s)} rows/s'])}"


def parts_ms(breakdown: Breakdown) -> dict[str, float]:
    """Return the parts of the mean latency for people, in milliseconds.

    Time outside all models is one part, since client and server count slightly different requests: its two halves can
    be negative, and the sum is clipped at 0.
    """
    steps = breakdown.steps
    sent_ms = sum(times.output_ms for times in steps.values())
    names = {model: "features" if "_transform_" in model else "model" for model in steps}
    names = dict.fromkeys(steps, "features and model") if len(steps) == 1 else names
    return {
        "client": breakdown.client_ms,
        "network and gRPC": max(breakdown.network_ms + breakdown.remainder_ms + sent_ms, 0.0),
        "queue": sum(times.queue_ms for times in steps.values()),
        **{names[model]: times.input_ms + times.infer_ms for model, times in steps.items()},
    }


def remarks(results: Sequence[LoadResult]) -> Iterator[str]:
    """Yield remarks on the results except each load's own `problem`. Remarks that apply to several loads are merged."""
    for metric in METRICS.values():
        yield from _not_reported(metric, results)
    yield from _remarked(results)


def checked(report: BenchmarkReport) -> str:
    if not report.num_checked:
        return "no scores were compared with expected ones"
    error = number(report.max_abs_error)
    return f"{report.num_checked:,} scores compared with the expected ones, largest difference {error}"


def searched(report: BenchmarkReport) -> Iterator[str]:
    for batch_size, search in (report.searches or {}).items():
        rows = rows_in_words(batch_size)
        tried = f"{search.num_probes} rates tested"
        if search.rate_per_s is None:
            met = "no tested rate met the target"
            tried = "; ".join(_reached(report, batch_size)) or tried
        else:
            met = f"met up to {number(search.rate_per_s)} requests/s"
            if (failed := search.failed_per_s) is not None:
                met += f", not at {number(failed)}{_of_the_client(report, batch_size, round(failed, 1))}"
        ended = f"; the search ended early: {search.ended}" if search.ended else ""
        yield f"{report.slo} with {rows} per request: {met} ({tried}){ended}"


def _of_the_client(report: BenchmarkReport, batch_size: int, failed_per_s: float) -> str:
    tested = [result for result in report.bench if (result.batch_size, result.rate_per_s) == (batch_size, failed_per_s)]
    is_late = any(result.problem and result.num_requests and not result.is_cut_short for result in tested)
    return ", where the client, not the server, was the limit" if is_late else ""


def _reached(report: BenchmarkReport, batch_size: int) -> Iterator[str]:
    for result in report.bench:
        if result.batch_size == batch_size and result.rate_per_s is not None:
            yield f"{reached(result, Slo.parse(report.slo or ''))} at {number(result.rate_per_s)}/s"


def reached(result: LoadResult, slo: Slo) -> str:
    """Format the measured value of a latency target's percentile, such as “p99 9.2 ms”."""
    value_ms = result.value(slo.metric)
    return f"{METRICS[slo.metric].label} {'not reported' if value_ms is None else f'{number(value_ms)} ms'}"


def _not_reported(metric: Metric, results: Sequence[LoadResult]) -> Iterator[str]:
    """Yield the reasons why a metric was not reported, with the loads to which they apply. Reasons that repeat a load's
    `problem` are omitted.
    """
    loads: dict[str, list[LoadResult]] = {}
    for result in results:
        if (reason := result.metrics[metric.name].reason) and reason != result.problem:
            loads.setdefault(reason, []).append(result)
    if metric.level is not None and len(loads) > 1:  # the reasons differ in the number of samples
        few = [result for of_reason in loads.values() for result in of_reason]
        counts = [result.num_requests for result in few]
        required = samples_needed(metric.level)
        loads = {f"{min(counts):,} to {max(counts):,} samples, at least {required:,} required": few}
    for reason, without in loads.items():
        named = "" if len(without) == len(results) else " for " + "; ".join(result.load.words for result in without)
        yield f"{metric.label} not reported{named}: {reason}"


def _remarked(results: Sequence[LoadResult]) -> Iterator[str]:
    loads: dict[str, list[str]] = {}
    for result in results:
        for note in _notes(result):
            loads.setdefault(note, []).append(result.load.words)
    notes: dict[str, list[str]] = {}
    for note, of_note in loads.items():
        is_of_all = len(of_note) == len(results) > 1
        notes.setdefault("all loads" if is_of_all else "; ".join(of_note), []).append(note)
    for named, of_loads in notes.items():
        yield f"{named}: {'; '.join(of_loads)}"


def _notes(result: LoadResult) -> Iterator[str]:
    if not result.is_stable and not result.problem:
        yield "latency did not stabilize within the time limit"
    for status, count in result.errors.items():
        yield f"{count:,} requests failed with {status}"
    if result.num_unsent:
        yield f"{result.num_unsent:,} requests were not sent before the end"
    if result.num_repeated:
        yield f"{result.num_repeated:,} requests repeated rows sent before"
    if result.lag_mean_ms is not None and result.lag_p99_ms is not None:
        yield f"requests sent {result.lag_mean_ms:.2f} ms late on average, {result.lag_p99_ms:.2f} ms at p99"
