"""The report as one HTML page that needs nothing else: no script, no font, no picture from elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from serving.benchmark.breakdown import Breakdown
from serving.benchmark.charts import Line, legend, line_chart, share_bar
from serving.benchmark.markup import Markup, joined, tag
from serving.benchmark.percentiles import CONFIDENCE, LEVELS, level_name
from serving.benchmark.report import BenchmarkReport, LoadResult
from serving.benchmark.series import AXES, PERCENTILES, SHARES, curves, series, some, varying
from serving.benchmark.words import checked, number, remarks, searched

_STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1c2126;--soft:#59636e;--line:#d8dee4;--bad:#b3261e;
--c0:#1b6ca8;--c1:#c65102;--c2:#2a7f3f;--c3:#8b3fa0;--c4:#b3352c;--c5:#0f7c80;--c6:#7a6000;--c7:#5a5a5a}
@media(prefers-color-scheme:dark){:root{--back:#14181c;--text:#e6e9ec;--soft:#9aa5b1;--line:#343c44;--bad:#ff8a80;
--c0:#6cb4ee;--c1:#ff9e4a;--c2:#6fce86;--c3:#d39be6;--c4:#ff7f74;--c5:#4fd0d4;--c6:#e0c040;--c7:#b8b8b8}}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--back);color:var(--text);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
pre{overflow-x:auto;padding:.6rem;border:1px solid var(--line);border-radius:.3rem;font-size:.85rem}
.wide{overflow-x:auto}.soft,small,figcaption{color:var(--soft)}.bad{color:var(--bad);font-weight:600}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.3rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;vertical-align:top}
th:first-child,td:first-child{text-align:left}td small{display:block}td.text{white-space:normal;text-align:left}
.charts{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}
figure{margin:0}figcaption{font-size:.95rem}svg{display:block;width:100%;height:auto}
svg line{stroke:var(--line)}svg text{fill:var(--soft);font-size:12px}svg path{fill:none;stroke:var(--c);stroke-width:2}
svg circle{fill:var(--c)}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.3rem 0;padding:0;list-style:none;font-size:.85rem}
.legend li::before{content:"";display:inline-block;width:.8em;height:.8em;margin-right:.4em;background:var(--c)}
.bar{display:flex;min-width:8rem;height:1.1rem}.bar span{flex-basis:0;background:var(--c)}
.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}
.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--c6)}.s7{--c:var(--c7)}
details{margin:.3rem 0}summary{cursor:pointer}
"""
_HEAD = Markup(
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
)


def to_html(report: BenchmarkReport) -> str:
    """The page: figures with their bounds, pictures, where the time went, how it was measured, and every figure."""
    title = f"{report.model_name}: latency and throughput"
    body = tag(
        "body",
        tag("h1", title),
        tag("p", _how(report), class_="soft"),
        tag("pre", tag("code", report.environment["command"])) if "command" in report.environment else "",
        *(tag("p", problem, class_="bad") for problem in report.problems),
        *(tag("p", sentence) for sentence in searched(report)),
        *_section("Figures", *_figures(report)),
        *_section("Pictures", *_pictures(report.bench)),
        *_section("Where the time of a request went", *_breakdowns(report.bench)),
        *_section("How it was measured", *_circumstances(report)),
        *_section("Every figure", *map(_all_of, report.bench)),
    )
    head = tag("head", _HEAD, tag("title", title), Markup(f"<style>{_STYLE}</style>"))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _how(report: BenchmarkReport) -> str:
    is_open = any(result.rate_per_s is not None for result in report.bench)
    loop = (
        "open loop: latency counts from the scheduled time" if is_open else "closed loop: latency counts from sending"
    )
    return f"Raw rows in, scores out, over gRPC; {loop}. Bounds hold with {CONFIDENCE:.0%} confidence."


def _section(title: str, *content: str) -> list[Markup]:
    return (
        [tag("h2", title), *(part if isinstance(part, Markup) else joined(part) for part in content)] if content else []
    )


def _figures(report: BenchmarkReport) -> Iterator[Markup]:
    if not report.bench:
        yield tag("p", "Nothing was measured.")
        return
    names = {name: f"{level_name(name)} ms" for name in LEVELS}
    rows = [
        [
            result.load.words,
            *(_bounded(getattr(result, f"{name}_ms"), result.intervals_ms.get(name)) for name in names),
            number(result.max_ms),
            number(result.requests_per_s),
            _bounded(result.rows_per_s, result.rows_per_s_interval),
        ]
        for result in report.bench
    ]
    yield _table(["load", *names.values(), "max ms", "answered/s", "rows/s"], rows)
    lines = [f"{result.load.words}: {remark}" for result in report.bench for remark in remarks(result)]
    if lines:
        yield tag("ul", *(tag("li", line) for line in lines), class_="soft")


def _pictures(results: Sequence[LoadResult]) -> list[Markup]:
    drawn = [*_curves(results), *_over_the_load(results), *_over_batch_sizes(results)]
    return [tag("div", *drawn, class_="charts")] if drawn else []


def _curves(results: Sequence[LoadResult]) -> Iterator[Markup]:
    lines = [
        Line(name=name, points=list(zip(shares, values, strict=True)), is_marked=False)
        for name, (shares, values) in curves(results).items()
    ]
    ends = [line.points[-1][0] for line in lines if line.points]
    if ends:
        ticks = {1 / (1 - share): f"p{100 * share:g}" for share in SHARES}
        needed = sum(tick < max(ends) for tick in ticks) + 1
        shown = dict(list(ticks.items())[:needed])
        yield line_chart("Latency of all requests, ms", lines, x_label="share that was at least as fast", x_ticks=shown)


def _over_the_load(results: Sequence[LoadResult]) -> Iterator[Markup]:
    """Latency over the rate, the requests in flight, or the batch size: what varies."""
    if not results:
        return
    key = varying(results)
    groups = series(results, key)
    lines = [
        Line(
            name=f"{level}, {name}" if name and len(groups) > 1 else level,
            points=[(getattr(result, key), getattr(result, PERCENTILES[level])) for result in group],
        )
        for name, group in some(list(groups.items()))
        for level in (PERCENTILES if len(groups) == 1 else ("p99",))
    ]
    if any(y for line in lines for _, y in line.points):
        yield line_chart("Latency, ms", lines, x_label=AXES[key], x_ticks=_ticks(results, key))


def _over_batch_sizes(results: Sequence[LoadResult]) -> Iterator[Markup]:
    groups: dict[str, list[LoadResult]] = {}
    for result in sorted(results, key=lambda result: result.batch_size):
        groups.setdefault(result.load.words.partition(", ")[2] or "one at a time", []).append(result)
    lines = [
        Line(name=name, points=[(result.batch_size, result.rows_per_s) for result in group])
        for name, group in some(list(groups.items()))
    ]
    if any(y for line in lines for _, y in line.points):
        ticks = _ticks(results, "batch_size")
        yield line_chart("Throughput, rows/s", lines, x_label=AXES["batch_size"], x_ticks=ticks)


def _ticks(results: Sequence[LoadResult], key: str) -> dict[float, str]:
    return {value: f"{value:,.0f}" for value in sorted({float(getattr(result, key)) for result in results})}


def _breakdowns(results: Sequence[LoadResult]) -> Iterator[Markup]:
    found = [(result.load.words, result.breakdown) for result in results if result.breakdown is not None]
    if not found:
        return
    bars = [[load, share_bar(_coarse(breakdown)), number(breakdown.total_ms)] for load, breakdown in found]
    yield legend(list(_coarse(found[0][1])))
    yield _table(["load", "share of the mean", "mean ms"], bars)
    parts = list(found[0][1].parts_ms())
    lines = [
        [load, *(number(breakdown.parts_ms().get(part)) for part in parts), number(breakdown.total_ms)]
        for load, breakdown in found
    ]
    yield tag("p", "Mean milliseconds of each part:")
    yield _table(["load", *parts, "in all"], lines)


def _coarse(breakdown: Breakdown) -> dict[str, float]:
    """Client, network, queue, each model's work, remainder; milliseconds."""
    steps = breakdown.steps
    return {
        "client": breakdown.client_ms,
        "network": breakdown.network_ms,
        "queue": sum(times.queue_ms for times in steps.values()),
        **{model: times.total_ms - times.queue_ms for model, times in steps.items()},
        "remainder": breakdown.remainder_ms,
    }


def _circumstances(report: BenchmarkReport) -> Iterator[Markup]:
    yield tag("p", checked(report))
    if report.floors:
        yield tag("p", "The client alone, against a model that returns its input:")
        names = ["concurrency", "requests_per_s", "p50_ms", "client_cpu_ms"]
        yield _table(names, [[number(getattr(floor, name)) for name in names] for floor in report.floors])
    yield tag("p", "Environment:")
    yield _pairs({**report.environment, "format_version": str(report.format_version)})


def _all_of(result: LoadResult) -> Markup:
    """All that the JSON says of a load but the histogram, which is the curve, under the names it has there."""
    plain = {column.name: getattr(result, column.name) for column in fields(LoadResult) if column.name != "histogram"}
    plain.update({name: asdict(plain[name]) for name in ("server", "breakdown") if plain[name] is not None})
    return tag("details", tag("summary", result.load.words), _pairs(dict(_flat(plain))))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, tuple):
            yield f"{prefix}{name}", " to ".join(map(number, value))
        else:
            yield f"{prefix}{name}", number(value)


def _bounded(value: float | None, bounds: tuple[float | None, float | None] | None) -> Markup:
    shown = "" if value is None or bounds is None else tag("small", " to ".join(map(number, bounds)))
    return joined(number(value), shown)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Markup:
    cells = [tag("tr", *(tag("td", cell) for cell in line)) for line in lines]
    table = tag("table", tag("thead", tag("tr", *(tag("th", name) for name in head))), tag("tbody", *cells))
    return tag("div", table, class_="wide")


def _pairs(values: Mapping[str, str]) -> Markup:
    lines = [tag("tr", tag("td", name), tag("td", value, class_="text")) for name, value in values.items()]
    return tag("div", tag("table", tag("tbody", *lines)), class_="wide")
