"""Charts of a benchmark: latency and throughput by load, and the distribution of latency."""

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.stats.metrics import METRICS
from rankline.serving.loadtest.stats.percentiles import samples_needed

_MAX_SHOWN = 8  # number of ticks and lines; more would overlap
_SHARES = (0.5, 0.9, 0.99, 0.999, 0.9999)
_AXES = {
    "rate_per_s": "requests per second offered",
    "concurrency": "requests in flight",
    "batch_size": "rows in a request",
}
_PLAIN: Any = {"text.parse_math": False, "svg.fonttype": "none"}  # no formulas in names; text stays text in SVG
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_Item = TypeVar("_Item")


def write_plot(report: BenchmarkReport, path: Path) -> None:
    """Draw the charts of a report to a file, whose suffix determines the format. Charts without data show a note."""
    with rc_context(_PLAIN):
        figure = Figure(figsize=(15, 4.2), layout="constrained")
        for axes, draw in zip(figure.subplots(1, len(_PICTURES)), _PICTURES, strict=True):
            draw(axes, report.bench)
        figure.suptitle(f"{report.model_name}: raw rows in, scores out, over gRPC")
        figure.savefig(path, dpi=150)


def svg_pictures(report: BenchmarkReport) -> Iterator[str]:
    """Yield the charts as SVG elements to embed in a page, with its text color and without external references."""
    if not any(result.num_requests for result in report.bench):
        return
    for draw in _PICTURES:
        with rc_context(_PLAIN), io.StringIO() as text:
            figure = Figure(figsize=(5, 4), layout="constrained")
            draw(figure.subplots(), report.bench)
            figure.savefig(text, format="svg", transparent=True, metadata=_NO_METADATA)
            _, begin, element = text.getvalue().partition("<svg")
        element = re.sub(r' (xmlns(:\w+)?|width|height)="[^"]*"', "", begin + element, count=4)
        yield element.replace("#000000", "currentColor")


def _draw_latency(axes: Axes, results: Sequence[LoadResult]) -> None:
    drawn = [metric.name for metric in METRICS.values() if metric.is_drawn]
    _draw_over_load(axes, results, drawn, title="Latency of a request", unit="milliseconds")


def _draw_throughput(axes: Axes, results: Sequence[LoadResult]) -> None:
    _draw_over_load(axes, results, ["rows_per_s"], title="Throughput", unit="rows per second")


def _draw_over_load(axes: Axes, results: Sequence[LoadResult], names: Sequence[str], *, title: str, unit: str) -> None:
    """Plot metrics against the load. With several batch sizes, plot only the last metric, one line per batch size."""
    key = _varying(results)
    groups = _series(results, key)
    for group_name, group in groups.items():
        loads = [getattr(result, key) for result in group]
        for name in names if len(groups) == 1 else names[-1:]:
            labels = ([METRICS[name].label] if len(names) > 1 else []) + ([group_name] if len(groups) > 1 else [])
            axes.plot(loads, [_number(result.value(name)) for result in group], "o-", label=", ".join(labels))
    if axes.lines and max(len(names), len(groups)) > 1:
        axes.legend(frameon=False)
    axes.set_title(title)
    axes.set_ylabel(unit)
    _scale(axes, results, key)


def _draw_curves(axes: Axes, results: Sequence[LoadResult]) -> None:
    for name, (shares, values) in _curves(results).items():
        axes.plot(shares, values, label=name)
    axes.set_xscale("log")
    _scale_heights(axes)
    axes.set_xticks([1 / (1 - share) for share in _SHARES], [f"p{100 * share:g}" for share in _SHARES])
    _plain_numbers(axes)
    axes.set_title("Latency of all requests")
    axes.set_xlabel("share of requests that were at least as fast")
    axes.set_ylabel("milliseconds")
    if axes.lines:
        axes.legend(fontsize="small", frameon=False)


_PICTURES: Sequence[Callable[[Any, Sequence[LoadResult]], None]] = (_draw_latency, _draw_throughput, _draw_curves)


def _varying(results: Sequence[LoadResult]) -> str:
    if any(result.rate_per_s is not None for result in results):
        return "rate_per_s"
    return "concurrency" if len({result.concurrency for result in results}) > 1 else "batch_size"


def _series(results: Sequence[LoadResult], key: str) -> Mapping[str, Sequence[LoadResult]]:
    found: dict[str, list[LoadResult]] = {}
    for result in sorted(results, key=lambda result: float(getattr(result, key))):
        found.setdefault("" if key == "batch_size" else f"{result.batch_size:,} rows", []).append(result)
    return dict(_some(list(found.items())))


def _curves(results: Sequence[LoadResult]) -> dict[str, tuple[list[float], list[float]]]:
    """Return the latency curve of each load that has one, with 1 / (1 - share) as x and the latency in ms as y."""
    found = {}
    for result in _some(results):
        values, counts = result.latencies().counts()
        if not len(values) or result.value("mean_ms") is None:
            continue
        total = int(counts.sum())
        shares = np.cumsum(counts) / total
        known = [share for share in _SHARES if samples_needed(share) <= total]
        shown = shares < (known[-1] if known else _SHARES[0])
        found[result.load.words] = ((1 / (1 - shares[shown])).tolist(), (values[shown] / 1e6).tolist())
    return found


def _some(items: Sequence[_Item]) -> Sequence[_Item]:
    return items[:: -(-len(items) // _MAX_SHOWN) or 1]


def _scale(axes: Axes, results: Sequence[LoadResult], key: str) -> None:
    axes.set_xscale("log", base=2)
    _scale_heights(axes)
    ticks = _apart(sorted({float(getattr(result, key)) for result in results}))
    axes.set_xticks(ticks, [f"{load:,.0f}" for load in ticks], rotation=45)
    _plain_numbers(axes)
    axes.set_xlabel(_AXES[key])


def _scale_heights(axes: Axes) -> None:
    heights = np.concatenate([[], *(np.asarray(line.get_ydata(), float) for line in axes.lines)])
    if (heights > 0).any():  # False for NaN
        axes.set_yscale("log")
    else:
        axes.text(0.5, 0.5, "not reported", ha="center", va="center", transform=axes.transAxes)


def _apart(values: Sequence[float]) -> list[float]:
    """Thin out ascending `values` so that their tick labels do not overlap on a log axis."""
    if not values:
        return []
    least = math.log(values[-1] / values[0]) / (_MAX_SHOWN + 1)
    shown = list(values[:1])
    for value in values[1:]:
        if math.log(value / shown[-1]) >= least:
            shown.append(value)
    return shown


def _plain_numbers(axes: Axes) -> None:
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda _value, _: ""))
    axes.grid(visible=True, which="major", alpha=0.3)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
