"""What a benchmark found, on the terminal: the report of one, and two side by side."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from rankline.display import heading, plain_table
from serving.benchmark.compare import Comparison, Difference
from serving.benchmark.percentiles import CONFIDENCE
from serving.benchmark.report import BenchmarkReport
from serving.benchmark.table import Cell, columns, number
from serving.benchmark.words import checked, remarks, searched

_MOST_COLUMNS = 4


def print_report(report: BenchmarkReport, console: Console) -> None:
    """Latency percentiles and throughput per load, where the time went, and what is wrong with the figures."""
    how = f"{_how(report)} over gRPC, raw ids in, scores out; ± at {CONFIDENCE:.0%} confidence"
    heading(console, f"{report.model_name}: {how}")
    _print_figures(report, console)
    _print_breakdown(report, console)
    for sentence in searched(report):
        console.print(f"[bold]{escape(sentence)}[/]", soft_wrap=True)
    for floor in report.floors:
        console.print(
            f"a model that does nothing, {floor.concurrency} in flight: {floor.requests_per_s:,.0f} requests/s, "
            f"{floor.client_cpu_ms:.3f} ms of client CPU time each",
            soft_wrap=True,
        )
    for problem in report.problems:
        console.print(f"[bold red]{escape(problem)}[/]", soft_wrap=True)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """How each figure changed and how sure that is, what could not be compared, and what regressed."""
    heading(console, "compared with the earlier report")
    _print_differences(comparison, console)
    for note in _not_compared(comparison):
        console.print(f"[dim]{escape(note)}[/]", soft_wrap=True)
    _print_verdict(comparison, console)


def _how(report: BenchmarkReport) -> str:
    if any(result.rate_per_s is not None for result in report.bench):
        return "latency from the scheduled time"
    is_alone = all(result.concurrency == 1 for result in report.bench)
    return "one request at a time" if is_alone else "closed loop"


def _print_figures(report: BenchmarkReport, console: Console) -> None:
    """The table and the remarks on it.

    Below each figure is how far its interval reaches at most, as a share of it; the report has both bounds.
    """
    shown = columns(report.bench)
    table = plain_table()
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*map(_figure, cells))
    console.print(table)
    for remark in remarks(report.bench) if not report.searches else ():  # the rates of a search are tested briefly
        console.print(f"[dim]{escape(remark)}[/]", soft_wrap=True)
    console.print(f"[dim]{checked(report)}[/]", soft_wrap=True)


def _figure(cell: Cell) -> str:
    if cell.value is None or cell.bounds is None:
        return cell.text
    low, high = cell.bounds
    if low is None or high is None or not cell.value:
        return f"{cell.text}\n[dim]±?[/]"
    share = max(high - cell.value, cell.value - low) / cell.value
    return f"{cell.text}\n[dim]±{share:.1%}[/]" if share < 0.0995 else f"{cell.text}\n[dim]±{share:.0%}[/]"


def _print_breakdown(report: BenchmarkReport, console: Console) -> None:
    """Mean milliseconds by part, one column for each of the first loads; the report has them all."""
    shown = [(result.load, result.breakdown) for result in report.bench if result.breakdown is not None]
    if not shown:
        return
    heading(console, "where the time of a request went, mean ms")
    table = plain_table()
    table.add_column("", no_wrap=True)
    parts: dict[str, list[str]] = {}
    for load, breakdown in shown[:_MOST_COLUMNS]:
        table.add_column(load.words.replace(", ", "\n"), justify="right")
        for name, value in {**breakdown.parts_ms(), "total": breakdown.total_ms}.items():
            parts.setdefault(name, []).append(f"{value:.3f}")
    for name, values in parts.items():
        table.add_row(name, *values)
    console.print(table)


def _print_differences(comparison: Comparison, console: Console) -> None:
    table = plain_table()
    for name in ("load", "figure", "before", "now", "change", f"{CONFIDENCE:.0%} interval", ""):
        table.add_column(name, justify="left" if name in ("load", "figure", "") else "right", no_wrap=True)
    for found in comparison.differences:
        table.add_row(
            escape(found.load),
            found.figure,
            number(found.before),
            number(found.after),
            _percent(found.change),
            f"{_percent(found.low)} to {_percent(found.high)}",
            _verdict(found, comparison.max_regression),
        )
    console.print(table)


def _not_compared(comparison: Comparison) -> Iterator[str]:
    yield from (f"{load} was not measured now" for load in comparison.only_before)
    yield from (f"{load} was not measured before" for load in comparison.only_after)
    yield from comparison.not_reported
    yield from comparison.remarks


def _print_verdict(comparison: Comparison, console: Console) -> None:
    limit = f"{comparison.max_regression:.0%}"
    if count := len(comparison.inconclusive):
        console.print(
            f"[yellow]{count} inconclusive: the interval includes the limit of {limit}. "
            "Measure longer with --min-duration-s[/]",
            soft_wrap=True,
        )
    if count := len(comparison.regressions):
        console.print(f"[bold red]{count} worse by more than {limit}[/]")
    else:
        console.print(f"no significant regression beyond {limit}")


def _verdict(found: Difference, bound: float) -> str:
    if found.regressed(bound):
        return "[bold red]worse[/]"
    return "[yellow]worse?[/]" if found.may_have_regressed(bound) else ""


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:+.1%}"
