"""Benchmark reports and comparisons, as terminal tables."""

from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape

from rankline.serving.loadtest.compare import Comparison, Difference
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.stats.percentiles import CONFIDENCE
from rankline.serving.loadtest.summary import KEYS, Cell, checked, columns, conclusion, number, remarks
from rankline.terminal.console import heading, print_table

_MAX_COLUMNS = 4
_MAX_REMARKS = 3


def print_report(report: BenchmarkReport, console: Console) -> None:
    how = f"{_how(report)} over gRPC, raw ids in, scores out; ± at {CONFIDENCE:.0%} confidence"
    heading(console, f"{report.model_name}: {how}")
    console.print(f"[bold]{escape(conclusion(report))}[/]", soft_wrap=True)
    _print_problems(report, console)
    _print_figures(report, console)
    _print_breakdown(report, console)
    for floor in report.floors:
        console.print(
            f"a model that computes nothing, {floor.concurrency} in flight: {floor.requests_per_s:,.0f} requests/s, "
            f"{floor.client_cpu_ms:.3f} ms of client CPU time each",
            soft_wrap=True,
        )


def print_short_report(report: BenchmarkReport, console: Console) -> None:
    """Print the key metrics of each load and any problems. The HTML page contains the full report."""
    heading(console, f"{_how(report)} over gRPC, raw ids in, scores out")
    _print_problems(report, console)
    _print_table(report, lambda cell: escape(cell.text), console)
    console.print(f"[dim]{checked(report)}[/]", soft_wrap=True)


def print_comparison(comparison: Comparison, console: Console) -> None:
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


def _print_problems(report: BenchmarkReport, console: Console) -> None:
    for problem in report.problems:
        console.print(f"[bold red]{escape(problem)}[/]", soft_wrap=True)


def _print_table(report: BenchmarkReport, shown: Callable[[Cell], str], console: Console) -> None:
    cells = {name: list(map(shown, column)) for name, column in columns(report.bench).items()}
    print_table(console, cells, num_keys=sum(name in KEYS for name in cells), left=0)


def _print_figures(report: BenchmarkReport, console: Console) -> None:
    """Print the table and then remarks. Below each value, its confidence interval is shown as ± a percentage."""
    _print_table(report, _figure, console)
    found = list(remarks(report.bench)) if not report.searches else []  # a search tests its rates only briefly
    for remark in found[:_MAX_REMARKS]:
        console.print(f"[dim]{escape(remark)}[/]", soft_wrap=True)
    if (more := len(found) - _MAX_REMARKS) > 0:
        console.print(f"[dim]{more} more remarks are on the page, bench.html[/]")
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
    shown = [(result.load, result.breakdown) for result in report.bench if result.breakdown is not None]
    if not shown:
        return
    heading(console, "breakdown of the request time, mean ms")
    parts = [*shown[0][1].parts_ms(), "total"]
    cells = {"": [escape(part) for part in parts]}
    for load, breakdown in shown[:_MAX_COLUMNS]:
        values = {**breakdown.parts_ms(), "total": breakdown.total_ms}
        cells[load.words.replace(", ", "\n")] = [f"{values[part]:.3f}" if part in values else "" for part in parts]
    print_table(console, cells)


def _print_differences(comparison: Comparison, console: Console) -> None:
    found = comparison.differences
    columns = {
        "load": [escape(one.load) for one in found],
        "figure": [one.figure for one in found],
        "before": [number(one.before) for one in found],
        "now": [number(one.after) for one in found],
        "change": [_percent(one.change) for one in found],
        f"{CONFIDENCE:.0%} interval": [f"{_percent(one.low)} to {_percent(one.high)}" for one in found],
        "": [_verdict(one, comparison.max_regression) for one in found],
    }
    print_table(console, columns, num_keys=2, left=2)


def _not_compared(comparison: Comparison) -> Iterator[str]:
    yield from (f"{load} was not measured in this run" for load in comparison.only_before)
    yield from (f"{load} was not measured in the earlier run" for load in comparison.only_after)
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
