"""The sections of a page on speed: latency, throughput, where the time goes, and all figures."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.stats.percentiles import CONFIDENCE
from rankline.serving.loadtest.summary import Cell, checked, columns, number, parts_ms, remarks
from rankline.workflows.page.charts import Axis, Chart, Points, plain
from rankline.workflows.page.page import Card, Section, legend, share_bar, table

_NUM_BARS = 60
_LOADS = {
    "rate_per_s": "requests per second offered",
    "concurrency": "requests in flight",
    "batch_size": "rows per request",
}


def speed_section(reports: Mapping[str, BenchmarkReport]) -> Section:
    """Build the section of one report, or of several reports by name, drawn over each other."""
    measured = {name: [one for one in report.bench if one.num_requests] for name, report in reports.items()}
    measured = {name: results for name, results in measured.items() if results}
    title = "How fast is it?"
    if not measured:
        return Section(title=title, remarks=["Nothing was measured."])
    cards = [_latency(measured), _throughput(measured)]
    if len(measured) == 1:
        ((name, results),) = measured.items()
        cards += [*_one_row(results), *_breakdown(results)]
        return Section(title=title, cards=cards, folded=_details(reports[name]))
    return Section(title=title, cards=cards)


def _latency(measured: Mapping[str, Sequence[LoadResult]]) -> Card:
    key = _varying(measured)
    lines = {
        title: {name: _points(results, key, f"{name}_ms") for name in ("p50", "p99")}
        for title, results in _lines(measured, key)
    }
    every = [y for line in lines.values() for points in line.values() for _, y in points]
    if not every:
        reasons = {one.problem for results in measured.values() for one in results if one.problem}
        return Card(title="Latency", note=f"Not reported: {'; '.join(sorted(reasons))}.")
    chart = Chart(_loads(measured, key), Axis.log(every, text=lambda ms: f"{plain(ms)} ms"), "Latency by load")
    for color, (title, line) in enumerate(lines.items()):
        upper, lower = line["p99"], line["p50"]
        known = {x for x, _ in upper}
        chart.band([point for point in lower if point[0] in known], upper, color)
        chart.line(upper, color, kind="thin")
        chart.line(lower, color)
        chart.dots(lower, [f"{_LOADS[key]}: {x:,.0f}, p50 {number(y)} ms" for x, y in lower], color)
        if title and lower:
            chart.label(*lower[-1], title, color)
        else:
            for points, label in ((lower, "p50"), (upper, "p99")):
                if points:
                    chart.label(*points[len(points) // 2], label, color, is_above=label == "p99")
    return Card(title="Latency", note=f"p50 (line) to p99 (band) by {_LOADS[key]}, on log scales.", content=chart.svg())


def _throughput(measured: Mapping[str, Sequence[LoadResult]]) -> Card:
    key = _varying(measured)
    lines = {title: _points(results, key, "rows_per_s") for title, results in _lines(measured, key)}
    every = [y for points in lines.values() for _, y in points if y > 0]
    if not every:
        return Card(title="Throughput", note="Not reported.")
    chart = Chart(_loads(measured, key), Axis.log(every), "Throughput by load")
    for color, (title, points) in enumerate(lines.items()):
        shown = [point for point in points if point[1] > 0]
        if len(lines) == 1:
            chart.area(shown, color)
        chart.line(shown, color)
        chart.dots(shown, [f"{_LOADS[key]}: {x:,.0f}, {number(y)} rows/s" for x, y in shown], color)
        if shown:
            chart.label(*shown[-1], title or f"{plain(shown[-1][1])} rows/s", color, is_above=False)
    return Card(title="Throughput", note=f"Rows per second by {_LOADS[key]}, on log scales.", content=chart.svg())


def _one_row(results: Sequence[LoadResult]) -> Iterator[Card]:
    """Yield a histogram of the latency of the smallest requests, up to a little above p99."""
    result = min(results, key=lambda one: (one.batch_size, one.rate_per_s or one.concurrency or 0))
    values, counts = result.latencies().counts()
    marks = {name: ms for name in ("p50", "p90", "p99") if (ms := result.value(f"{name}_ms")) is not None}
    if not marks or result.value("mean_ms") is None:
        return
    values_ms = values / 1e6
    top = 1.4 * max(marks.values())
    bars, edges = np.histogram(values_ms, np.linspace(0.9 * float(values_ms.min()), top, _NUM_BARS + 1), weights=counts)
    chart = Chart(
        Axis.linear([float(edges[0]), top], "latency", lambda ms: f"{plain(ms)} ms"),
        Axis.linear([0, 1.3 * float(bars.max())]),
        f"Latency histogram, {result.load.words}",
    )
    chart.bars(edges.tolist(), bars.tolist())
    for level, (name, ms) in enumerate(marks.items()):
        chart.mark(ms, f"{name} {plain(ms)} ms", level)
    above = int(counts[values_ms > top].sum())
    beyond = f"; {above:,} above {plain(top)} ms not shown, the longest {plain(result.value('max_ms') or 0)} ms" * (
        above > 0
    )
    note = f"{result.num_requests:,} requests{beyond}."
    yield Card(title=f"Latency, {result.load.words}", note=note, content=chart.svg())


def _breakdown(results: Sequence[LoadResult]) -> Iterator[Card]:
    found = [(result.load.words, parts_ms(result.breakdown)) for result in results if result.breakdown is not None]
    if not found:
        return
    names = list(dict.fromkeys(name for _, parts in found for name in parts))
    bars: dict[str, list[str]] = {
        "load": [load for load, _ in found],
        "share of the mean latency": [share_bar({name: parts.get(name, 0.0) for name in names}) for _, parts in found],
        "mean": [f"{sum(parts.values()):.2f} ms" for _, parts in found],
    }
    content = legend(names) + table(bars, left=2)
    yield Card(
        title="Where the time goes",
        note="Mean latency, from Triton's statistics. Slow requests raise the mean above the median.",
        content=content,
    )


def _details(report: BenchmarkReport) -> dict[str, Markup]:
    found: dict[str, Markup] = {
        "Figures of all loads": table(
            {name: list(map(_figure, cells)) for name, cells in columns(report.bench).items()}
        )
    }
    if lines := [*remarks(report.bench), checked(report)]:
        found["Remarks"] = Markup("<ul>{}</ul>").format(
            Markup("").join(Markup("<li>{}</li>").format(line) for line in lines)
        )
    if report.floors:
        names = ("concurrency", "requests_per_s", "p50_ms", "client_cpu_ms")
        floors = {name: [number(getattr(floor, name)) for floor in report.floors] for name in names}
        found["The client with a model that returns its input"] = table(floors)
    about = {**report.environment, "intervals": f"{CONFIDENCE:.0%} confidence"}
    found["Machine, versions and command"] = table({"": list(about), "value": list(about.values())}, left=2)
    return found


def _figure(cell: Cell) -> Markup:
    text = cell.text if cell.value is None else number(cell.value)
    known = [number(bound) for bound in cell.bounds or () if bound is not None]
    bounds = f"95 % interval: {' to '.join(known)}" if len(known) == 2 else ""
    return Markup('<span title="{}">{}</span>').format(bounds, text)


def _varying(measured: Mapping[str, Sequence[LoadResult]]) -> str:
    results = [one for found in measured.values() for one in found]
    if any(one.rate_per_s is not None for one in results):
        return "rate_per_s"
    return "concurrency" if len({one.concurrency for one in results}) > 1 else "batch_size"


def _lines(measured: Mapping[str, Sequence[LoadResult]], key: str) -> Iterator[tuple[str, Sequence[LoadResult]]]:
    """Yield the title and results of each line of a chart: one per report, and per batch size unless it is the axis."""
    for name, results in measured.items():
        sizes = [0] if key == "batch_size" else sorted({one.batch_size for one in results})
        for size in sizes:
            rows = f"{size:,} rows" if len(sizes) > 1 else ""
            own = [one for one in results if not size or one.batch_size == size]
            yield ", ".join(part for part in (name if len(measured) > 1 else "", rows) if part), own


def _points(results: Sequence[LoadResult], key: str, metric: str) -> Points:
    found = [(float(getattr(one, key)), one.value(metric)) for one in results if getattr(one, key) is not None]
    return sorted((x, y) for x, y in found if y is not None)


def _loads(measured: Mapping[str, Sequence[LoadResult]], key: str) -> Axis:
    loads = sorted({float(value) for found in measured.values() for one in found if (value := getattr(one, key))})
    return Axis.log(loads, _LOADS[key], lambda load: f"{load:,.0f}").at(*loads)
