"""Benchmark reports and comparisons, as terminal tables."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from rankline.serving.loadtest.compare import Comparison, Difference
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.stats.percentiles import CONFIDENCE
from rankline.serving.loadtest.summary import KEYS, Cell, checked, columns, conclusion, number, parts_ms, remarks
from rankline.terminal.console import heading, print_table, show

_MAX_REMARKS = 3
_NONE = "–"
_USELESS = 2.0  # a change of up to three times is not worth showing


def print_report(report: BenchmarkReport, console: Console) -> None:
    how = f"{_how(report)} over gRPC, raw ids in, scores out; ± at {CONFIDENCE:.0%} confidence"
    heading(console, f"{report.model_name}: {how}")
    show(console, f"[bold]{escape(conclusion(report))}[/]")
    for problem in report.problems:
        show(console, f"[bold red]{escape(problem)}[/]")
    _print_figures(report, console)
    _print_breakdown(report, console)
    for floor in report.floors:
        show(
            console,
            f"a model that computes nothing, {floor.concurrency} in flight: {floor.requests_per_s:,.0f} requests/s, "
            f"{floor.client_cpu_ms:.3f} ms of client CPU time each",
        )


def print_comparison(comparison: Comparison, console: Console) -> None:
    heading(console, "compared with the earlier report")
    found = comparison.differences
    columns = {
        "": [escape(one.title) for one in found],
        "before": [number(one.before) for one in found],
        "now": [number(one.after) for one in found],
        "change": [f"{one.change:+.1%}" for one in found],
        f"{CONFIDENCE:.0%} interval": list(map(interval_of, found)),
        "verdict": [_verdict(one, comparison.max_regression) for one in found],
    }
    print_table(console, columns)
    for note in _not_compared(comparison):
        show(console, f"[dim]{escape(note)}[/]")
    _print_verdict(comparison, console)


def _how(report: BenchmarkReport) -> str:
    if any(result.rate_per_s is not None for result in report.bench):
        return "latency from the scheduled time"
    is_alone = all(result.concurrency == 1 for result in report.bench)
    return "one request at a time" if is_alone else "closed loop"


def _print_figures(report: BenchmarkReport, console: Console) -> None:
    """Print the table and then remarks. Below each value, its confidence interval is shown as ± a percentage."""
    cells = {name: list(map(_figure, column)) for name, column in columns(report.bench).items()}
    print_table(console, cells, num_keys=sum(name in KEYS for name in cells), left=0)
    found = list(remarks(report.bench)) if not report.searches else []  # a search tests its rates only briefly
    for remark in found[:_MAX_REMARKS]:
        show(console, f"[dim]{escape(remark)}[/]")
    if (more := len(found) - _MAX_REMARKS) > 0:
        console.print(f"[dim]{more} more remarks are on the page[/]")
    show(console, f"[dim]{checked(report)}[/]")


def _figure(cell: Cell) -> str:
    if cell.value is None or cell.bounds is None:
        return cell.text
    low, high = cell.bounds
    if low is None or high is None or not cell.value:
        return cell.text
    share = max(high - cell.value, cell.value - low) / cell.value
    if share > 1:
        return f"{cell.text}\n[dim]±>100%[/]"
    return f"{cell.text}\n[dim]±{share:.1%}[/]" if share < 0.0995 else f"{cell.text}\n[dim]±{share:.0%}[/]"


def _print_breakdown(report: BenchmarkReport, console: Console) -> None:
    shown = [(result.load, result.breakdown) for result in report.bench if result.breakdown is not None]
    if not shown:
        return
    heading(console, "where the time of a request goes, mean ms")
    found = [parts_ms(breakdown) for _, breakdown in shown]
    names = list(dict.fromkeys(name for parts in found for name in parts))
    cells = {"": [escape(load.words) for load, _ in shown]}
    cells |= {name: [f"{parts.get(name, 0.0):.3f}" for parts in found] for name in names}
    print_table(console, {**cells, "total": [f"{sum(parts.values()):.3f}" for parts in found]})


def interval_of(found: Difference) -> str:
    """Return the interval of a change, or a dash if a bound is unknown or too wide to say anything."""
    if found.low is None or found.high is None or found.high > _USELESS:
        return _NONE
    return f"{found.low:+.1%} to {found.high:+.1%}"


def _not_compared(comparison: Comparison) -> Iterator[str]:
    yield from (f"{load} was not measured in this run" for load in comparison.only_before)
    yield from (f"{load} was not measured in the earlier run" for load in comparison.only_after)
    yield from comparison.not_reported
    yield from comparison.remarks


def _print_verdict(comparison: Comparison, console: Console) -> None:
    limit = f"{comparison.max_regression:.0%}"
    reasons = Counter(
        "without a usable interval" if interval_of(one) == _NONE else f"the interval includes the limit of {limit}"
        for one in comparison.inconclusive
    )
    for reason, count in reasons.items():
        show(console, f"[yellow]{count} inconclusive: {reason}. Measure longer with --min-duration-s[/]")
    if count := len(comparison.regressions):
        console.print(f"[bold red]{count} worse by more than {limit}[/]")
    else:
        console.print(f"no significant regression beyond {limit}")


def _verdict(found: Difference, bound: float) -> str:
    if found.regressed(bound):
        return "[bold red]worse[/]"
    if found.may_have_regressed(bound):
        return "[yellow]inconclusive[/]"
    colors = {"better": "green", "worse": "yellow", "inconclusive": "dim"}
    return f"[{colors[found.verdict]}]{found.verdict}[/]"
