"""Render a benchmark report as a self-contained HTML page."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rankline.serving.loadtest.report.plot import svg_pictures
from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.server_breakdown import Breakdown
from rankline.serving.loadtest.stats.percentiles import CONFIDENCE
from rankline.serving.loadtest.summary import Cell, checked, columns, conclusion, number, remarks

_NUM_COLOURS = 8
_STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1c2126;--soft:#59636e;--line:#d8dee4;--bad:#b3261e;
--c0:#1b6ca8;--c1:#c65102;--c2:#2a7f3f;--c3:#8b3fa0;--c4:#b3352c;--c5:#0f7c80;--c6:#7a6000;--c7:#5a5a5a}
@media(prefers-color-scheme:dark){:root{--back:#14181c;--text:#e6e9ec;--soft:#9aa5b1;--line:#343c44;--bad:#ff8a80;
--c0:#6cb4ee;--c1:#ff9e4a;--c2:#6fce86;--c3:#d39be6;--c4:#ff7f74;--c5:#4fd0d4;--c6:#e0c040;--c7:#b8b8b8}}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--back);color:var(--text);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
pre{overflow-x:auto;padding:.6rem;border:1px solid var(--line);border-radius:.3rem;font-size:.85rem}
.wide{overflow-x:auto}.soft,small{color:var(--soft)}.bad{color:var(--bad);font-weight:600}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.3rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;vertical-align:top}
th:first-child,td:first-child{text-align:left}td small{display:block}td.text{white-space:normal;text-align:left}
.charts{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}
figure{margin:0}svg{display:block;width:100%;height:auto}svg text{fill:currentColor}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.3rem 0;padding:0;list-style:none;font-size:.85rem}
.legend li::before{content:"";display:inline-block;width:.8em;height:.8em;margin-right:.4em;background:var(--c)}
.bar{display:flex;min-width:8rem;height:1.1rem}.bar span{flex-basis:0;background:var(--c)}
.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}
.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--c6)}.s7{--c:var(--c7)}
details{margin:.3rem 0}summary{cursor:pointer}
"""


class Markup(str):
    """A string of trusted HTML. All other strings are escaped, so that text in a report never becomes markup."""

    __slots__ = ()


def tag(name: str, *content: str, **attributes: object) -> Markup:
    """Render an HTML element. Trailing underscores are removed from attribute names, as in `class_`."""
    given = "".join(f' {key.rstrip("_")}="{escape(str(value))}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{joined(*content)}</{name}>")


def joined(*content: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in content))


_HEAD = Markup(
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
)


def page(title: str, *content: str) -> str:
    head = tag("head", _HEAD, tag("title", title), Markup(f"<style>{_STYLE}</style>"))
    return f"<!doctype html>\n{tag('html', head, tag('body', *content), lang='en')}\n"


def to_html(report: BenchmarkReport) -> str:
    """Render a page with figures and their bounds, charts, latency breakdowns, and conditions of the measurement."""
    title = f"{report.model_name}: latency and throughput"
    parts = (
        tag("h1", title),
        tag("p", tag("strong", conclusion(report)), class_="bad" if report.problems else "verdict"),
        *(tag("p", problem, class_="bad") for problem in report.problems),
        tag("p", ", ".join(_model(report)), class_="soft"),
        tag("p", _how(report), class_="soft"),
        tag("pre", tag("code", report.environment["command"])) if "command" in report.environment else "",
        *_section("Figures", *_figures(report)),
        *_section("Charts", *_pictures(report)),
        *_section("Where request time was spent", *_breakdowns(report.bench)),
        *_section("How it was measured", *_circumstances(report)),
        *_section("All figures", *map(_all_of, report.bench)),
    )
    return page(title, *parts)


def _how(report: BenchmarkReport) -> str:
    is_open = any(result.rate_per_s is not None for result in report.bench)
    loop = (
        "open loop: latency counts from the scheduled time" if is_open else "closed loop: latency counts from sending"
    )
    return f"Raw rows in, scores out, over gRPC; {loop}. Bounds hold with {CONFIDENCE:.0%} confidence."


def _model(report: BenchmarkReport) -> Iterator[str]:
    yield report.model_name if report.version is None else f"{report.model_name}, version {report.version}"
    yield from (f"{name} {number(value)}" for name, value in report.quality.items())


def _section(title: str, *content: str) -> list[Markup]:
    return (
        [tag("h2", title), *(part if isinstance(part, Markup) else joined(part) for part in content)] if content else []
    )


def _figures(report: BenchmarkReport) -> Iterator[Markup]:
    if not report.bench:
        yield tag("p", "Nothing was measured.")
        return
    shown = columns(report.bench)
    yield _table(list(shown), [[_figure(cell) for cell in cells] for cells in zip(*shown.values(), strict=True)])
    if lines := list(remarks(report.bench)):
        listed = tag("ul", *(tag("li", line) for line in lines), class_="soft")
        count = "1 remark" if len(lines) == 1 else f"{len(lines)} remarks"
        yield tag("details", tag("summary", f"{count}: figures not reported, and why"), listed)


def _pictures(report: BenchmarkReport) -> list[Markup]:
    drawn = [tag("figure", Markup(picture)) for picture in svg_pictures(report)]
    return [tag("div", *drawn, class_="charts")] if drawn else []


def _breakdowns(results: Sequence[LoadResult]) -> Iterator[Markup]:
    found = [(result.load.words, result.breakdown) for result in results if result.breakdown is not None]
    if not found:
        return
    bars = [[load, _share_bar(_coarse(breakdown)), number(breakdown.total_ms)] for load, breakdown in found]
    yield _legend(list(_coarse(found[0][1])))
    yield _table(["load", "share of the mean", "mean ms"], bars)
    parts = list(found[0][1].parts_ms())
    lines = [
        [load, *(number(breakdown.parts_ms().get(part)) for part in parts), number(breakdown.total_ms)]
        for load, breakdown in found
    ]
    yield tag("p", "Mean milliseconds of each part:")
    yield _table(["load", *parts, "total"], lines)


def _coarse(breakdown: Breakdown) -> dict[str, float]:
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
    """Render all JSON fields of a load except the histogram, which is drawn as a curve."""
    plain = result.to_dict()
    del plain["histogram"]
    return tag("details", tag("summary", result.load.words), _pairs(dict(_flat(plain))))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, tuple):
            yield f"{prefix}{name}", " to ".join(map(number, value))
        else:
            yield f"{prefix}{name}", number(value)


def _figure(cell: Cell) -> Markup:
    bounds = tag("small", " to ".join(map(number, cell.bounds))) if cell.bounds else ""
    return joined(cell.text if cell.value is None else number(cell.value), bounds)


def _share_bar(shares: Mapping[str, float]) -> Markup:
    parts = (
        tag("span", class_=_colour(place), style=f"flex-grow:{value:.4f}", title=f"{name}: {value:.3f}")
        for place, (name, value) in enumerate(shares.items())
        if value > 0
    )
    return tag("div", *parts, class_="bar")


def _legend(names: Sequence[str]) -> Markup:
    return tag("ul", *(tag("li", name, class_=_colour(place)) for place, name in enumerate(names)), class_="legend")


def _colour(place: int) -> str:
    return f"s{place % _NUM_COLOURS}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Markup:
    cells = [tag("tr", *(tag("td", cell) for cell in line)) for line in lines]
    table = tag("table", tag("thead", tag("tr", *(tag("th", name) for name in head))), tag("tbody", *cells))
    return tag("div", table, class_="wide")


def _pairs(values: Mapping[str, str]) -> Markup:
    lines = [tag("tr", tag("td", name), tag("td", value, class_="text")) for name, value in values.items()]
    return tag("div", tag("table", tag("tbody", *lines)), class_="wide")
