"""The benchmark as a picture: latency and throughput over the load, and the latency of every share of requests."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from serving.benchmark.report import BenchmarkReport, LoadResult
from serving.benchmark.series import AXES, PERCENTILES, SHARES, curves, series, some, varying

_COLOURS = {"p50": "#1b6ca8", "p95": "#e08e0b", "p99": "#b3352c"}


def write_plot(report: BenchmarkReport, path: Path) -> None:
    """Draw a report.

    Args:
        report: at least one result.
        path: file to write; its suffix says the format, e.g. `.png` or `.svg`.
    """
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    latency, throughput, curves = figure.subplots(1, 3)
    key = varying(report.bench)
    _draw_latency(latency, report.bench, key)
    _draw_throughput(throughput, report.bench, key)
    for axes in (latency, throughput):
        _scale(axes, sorted({getattr(result, key) for result in report.bench}), AXES[key])
    _draw_curves(curves, report.bench)
    figure.suptitle(f"{report.model_name}: raw rows in, scores out, over gRPC")
    figure.savefig(path, dpi=150)


def _draw_latency(axes: Axes, results: Sequence[LoadResult], key: str) -> None:
    lines = series(results, key)
    for name, group in lines.items():
        loads = [getattr(result, key) for result in group]
        for label in PERCENTILES if len(lines) == 1 else ["p99"]:
            values = [_number(getattr(result, PERCENTILES[label])) for result in group]
            if len(lines) == 1:
                axes.plot(loads, values, "o-", label=label, color=_COLOURS[label])
            else:
                axes.plot(loads, values, "o-", label=f"{label}, {name}")
    axes.set_title("Latency of a request")
    axes.set_ylabel("milliseconds")
    axes.legend()


def _draw_throughput(axes: Axes, results: Sequence[LoadResult], key: str) -> None:
    lines = series(results, key)
    for name, group in lines.items():
        axes.plot([getattr(result, key) for result in group], [result.rows_per_s for result in group], "o-", label=name)
    if len(lines) > 1:
        axes.legend()
    axes.set_title("Throughput")
    axes.set_ylabel("rows per second")


def _draw_curves(axes: Axes, results: Sequence[LoadResult]) -> None:
    """Latency of each share of the requests, as far as the samples go."""
    for name, (shares, values) in curves(results).items():
        axes.plot(shares, values, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([1 / (1 - share) for share in SHARES], [f"p{100 * share:g}" for share in SHARES])
    _plain_numbers(axes)
    axes.set_title("Latency of all requests")
    axes.set_xlabel("share of requests that were at least as fast")
    axes.set_ylabel("milliseconds")
    if axes.lines:
        axes.legend(fontsize="small")


def _scale(axes: Axes, loads: Sequence[float], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = some(loads)
    axes.set_xticks(ticks, [f"{load:,.0f}" for load in ticks], rotation=45)
    _plain_numbers(axes)
    axes.set_xlabel(label)


def _plain_numbers(axes: Axes) -> None:
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda _value, _: ""))
    axes.grid(visible=True, which="major", alpha=0.3)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
