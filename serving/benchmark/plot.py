"""The benchmark as a picture: latency percentiles and throughput over batch sizes."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from serving.benchmark.report import BenchmarkReport

_PERCENTILES = (("p50_ms", "p50", "#1b6ca8"), ("p95_ms", "p95", "#e08e0b"), ("p99_ms", "p99", "#b3352c"))


def write_plot(report: BenchmarkReport, path: Path) -> None:
    """Draw a report.

    Args:
        report: at least one batch size.
        path: file to write; its suffix says the format, e.g. `.png` or `.svg`.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    latency, throughput = figure.subplots(1, 2)
    sizes = [result.batch_size for result in report.bench]
    for key, label, colour in _PERCENTILES:
        latency.plot(sizes, [getattr(result, key) for result in report.bench], "o-", color=colour, label=label)
    latency.set_title("Latency of a request")
    latency.set_ylabel("milliseconds")
    latency.legend()
    throughput.plot(sizes, [result.rows_per_s for result in report.bench], "o-", color="#2f7d4f")
    throughput.set_title("Throughput, one request in flight")
    throughput.set_ylabel("rows per second")
    for axes in (latency, throughput):
        _scale(axes, sizes)
    figure.suptitle(f"{report.model_name}: raw rows in, scores out, over gRPC")
    figure.savefig(path, dpi=150)


def _scale(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda _value, _: ""))
    axes.set_xlabel("rows in a request")
    axes.grid(visible=True, which="major", alpha=0.3)
