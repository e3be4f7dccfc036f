"""Tables at the end of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rankline.doctor import Check
from rankline.workspace import REPOSITORY, WORK_DIR
from serving.benchmark.compare import Comparison, Difference
from serving.benchmark.percentiles import CONFIDENCE, LEVELS, level_name
from serving.benchmark.report import BenchmarkReport, LoadResult
from serving.benchmark.words import checked, remarks, searched
from serving.engines import EngineComparison

if TYPE_CHECKING:
    from rankline.pipeline import RunResult
    from serving.ensemble import ExportedEnsemble

_MOST_COLUMNS = 4


def print_summary(result: "RunResult", console: Console) -> None:
    """Quality, latency, where everything is, and what to try next."""
    quality = result.quality
    seeds = len(quality.per_seed)
    num_rows = result.prepared.manifest.details["rows"]["valid"]
    _heading(console, f"{result.recipe.name}: quality on {num_rows:,} validation rows")
    table = _table()
    table.add_column("")
    table.add_column("AUC", justify="right")
    table.add_column("logloss", justify="right")
    auc, logloss = f"{quality.mean('valid_auc'):.4f}", f"{quality.mean('valid_logloss'):.4f}"
    if seeds > 1:
        auc += f" ± {quality.std('valid_auc'):.4f}"
        logloss += f" ± {quality.std('valid_logloss'):.4f}"
    table.add_row(f"model, mean of {seeds} seeds" if seeds > 1 else "model", auc, logloss)
    table.add_row("the same rows, scored by the server", f"{quality.served_auc:.4f}", "")
    if quality.best_auc is not None:
        table.add_row("best attainable on the generated data", f"{quality.best_auc:.4f}", "")
    console.print(table)
    parameters = result.trained.manifest.details["num_parameters"]
    calibration = f"mean score over mean label {quality.mean('valid_calibration'):.3f}"
    sizes = f"{parameters['embedding']:,} embedding parameters, {parameters['other']:,} others"
    console.print(f"[dim]{sizes}; {calibration}[/]", soft_wrap=True)
    print_report(result.report, console)
    print_engines(result.ensemble, console)
    store = result.trained.tracking_uri.replace(f"sqlite:///{Path.cwd()}/", "sqlite:///./")
    _heading(console, "next")
    recipe, workspace = result.recipe.name, result.workspace
    repository = "" if workspace.repository == REPOSITORY else f" --repository {workspace.repository}"
    work_dir = "" if workspace.root == WORK_DIR else f" --work-dir {workspace.root}"
    commands = [
        (f"mlflow ui --backend-store-uri {store}", "compare runs"),
        (f"rankline serve {recipe}{repository}", "keep the server up"),
    ]
    if result.prepared.item is not None:
        histories = result.prepared.histories()
        user = 1 if histories is None else histories[0][0].as_py()
        recommend = f"rankline recommend --recipe {recipe} --user {user} --top 10{work_dir}{repository}"
        commands.append((recommend, "titles for a user"))
    for command, purpose in commands:
        console.print(f"  [bold]{command}[/]  [dim]# {purpose}[/]", soft_wrap=True)


def print_report(report: BenchmarkReport, console: Console) -> None:
    """Latency percentiles and throughput per load, where the time went, and what is wrong with the figures.

    Below each figure is how far its interval reaches at most, as a share of it; the report has both bounds.
    """
    is_open = any(result.rate_per_s is not None for result in report.bench)
    is_alone = all(result.concurrency == 1 for result in report.bench)
    how = "latency from the scheduled time" if is_open else "one request at a time" if is_alone else "closed loop"
    _heading(console, f"{report.model_name}: {how} over gRPC, raw ids in, scores out; ± at {CONFIDENCE:.0%} confidence")
    table = _table()
    shown = {
        "rows": [f"{result.batch_size:,}" for result in report.bench],
        "offered/s": [f"{result.rate_per_s or 0:,.0f}" for result in report.bench] if is_open else [],
        "in flight": [str(result.concurrency) for result in report.bench] if not (is_open or is_alone) else [],
        **{f"{level_name(level)} ms": [_percentile(result, level) for result in report.bench] for level in LEVELS},
        "max ms": [_ms(result.max_ms) for result in report.bench],
        "answered/s": [f"{result.requests_per_s:,.0f}" for result in report.bench] if is_open else [],
        "rows/s": [_rows_per_s(result) for result in report.bench] if not is_open else [],
    }
    columns = {name: cells for name, cells in shown.items() if cells}
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console.print(table)
    for result in report.bench if not report.searches else ():  # the rates of a search are tried briefly
        if notes := list(remarks(result)):
            console.print(f"[dim]{result.load.words}: {escape('; '.join(notes))}[/]", soft_wrap=True)
    console.print(f"[dim]{checked(report)}[/]", soft_wrap=True)
    _print_breakdown(report, console)
    for sentence in searched(report):
        console.print(f"[bold]{escape(sentence)}[/]", soft_wrap=True)
    for floor in report.floors:
        console.print(
            f"a model that does nothing, {floor.concurrency} in flight: {floor.requests_per_s:,.0f} requests/s, "
            f"{floor.client_cpu_ms:.3f} ms of processor time of the client for each",
            soft_wrap=True,
        )
    for problem in report.problems:
        console.print(f"[bold red]{escape(problem)}[/]", soft_wrap=True)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """How each figure changed and how sure that is, what could not be compared, and what regressed."""
    _heading(console, "against the earlier report")
    table = _table()
    for name in ("load", "figure", "before", "now", "change", "95 % sure", ""):
        table.add_column(name, justify="left" if name in ("load", "figure", "") else "right", no_wrap=True)
    for found in comparison.differences:
        table.add_row(
            escape(found.load),
            found.figure,
            _figure(found.before),
            _figure(found.after),
            _percent(found.change),
            f"{_percent(found.low)} to {_percent(found.high)}",
            _verdict(found, comparison.max_regression),
        )
    console.print(table)
    notes = [f"{load} was not measured now" for load in comparison.only_before]
    notes += [f"{load} was not measured before" for load in comparison.only_after]
    for note in (*notes, *comparison.unstated, *comparison.remarks):
        console.print(f"[dim]{escape(note)}[/]", soft_wrap=True)
    bound = f"{comparison.max_regression:.0%}"
    if count := len(comparison.undecided):
        console.print(
            f"[yellow]{count} may be worse by more than {bound}: "
            "the uncertainty reaches across it. A longer --min-duration-s says more[/]",
            soft_wrap=True,
        )
    if count := len(comparison.regressions):
        console.print(f"[bold red]{count} worse by more than {bound}[/]")
    else:
        console.print(f"nothing is surely worse by more than {bound}")


def _verdict(found: Difference, bound: float) -> str:
    if found.regressed(bound):
        return "[bold red]worse[/]"
    return "[yellow]worse?[/]" if found.may_have_regressed(bound) else ""


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:+.1%}"


def _percentile(result: LoadResult, level: str) -> str:
    value: float | None = getattr(result, f"{level}_ms")
    return _ms(value) if value is None else f"{_ms(value)}\n{_reach(value, result.intervals_ms.get(level))}"


def _rows_per_s(result: LoadResult) -> str:
    return f"{result.rows_per_s:,.0f}\n{_reach(result.rows_per_s, result.rows_per_s_interval)}"


def _reach(value: float, bounds: tuple[float | None, float | None] | None) -> str:
    """How far the farther bound is away."""
    low, high = bounds or (None, None)
    if low is None or high is None or not value:
        return "[dim]±?[/]"
    share = max(high - value, value - low) / value
    return f"[dim]±{share:.1%}[/]" if share < 0.0995 else f"[dim]±{share:.0%}[/]"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _print_breakdown(report: BenchmarkReport, console: Console) -> None:
    """Mean milliseconds by part, one column for each of the first loads; the report has them all."""
    shown = [result for result in report.bench if result.breakdown is not None][:_MOST_COLUMNS]
    if not shown:
        return
    _heading(console, "where the time of a request went, mean ms")
    table = _table()
    table.add_column("", no_wrap=True)
    parts: dict[str, list[str]] = {}
    for result in shown:
        assert result.breakdown is not None
        table.add_column(result.load.words.replace(", ", "\n"), justify="right")
        for name, value in {**result.breakdown.parts_ms(), "in all": result.breakdown.total_ms}.items():
            parts.setdefault(name, []).append(f"{value:.3f}")
    for name, values in parts.items():
        table.add_row(name, *values)
    console.print(table)


def print_items(items: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Catalogue rows, best first."""
    rows = list(items)
    table = _table()
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right" if name == "score" else "left")
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row.values()))
    console.print(table)


def print_engines(ensemble: "ExportedEnsemble", console: Console) -> None:
    """Which engine runs the model, and which is faster for how many rows, where two were compared."""
    details = ensemble.manifest.details
    compared = f"; {EngineComparison(**details['engines']).summary()}" if details["engines"] else ""
    console.print(f"engine {details['engine']}{compared}", soft_wrap=True)


def print_versions(versions: "Iterable[ExportedEnsemble]", console: Console) -> None:
    """What was exported when, and which version answers."""
    table = _table()
    for name in ("version", "exported", "engine", "AUC", "MLflow run", ""):
        table.add_column(name)
    for version in versions:
        table.add_row(
            str(version.version),
            version.manifest.created_at,
            version.manifest.details["engine"],
            f"{version.offline_metrics['valid_auc']:.4f}",
            version.run_id[:8],
            "[green]answers[/]" if version.is_active else "",
        )
    console.print(table)


def print_check(check: Check, console: Console) -> None:
    """One line: whether it works, and what was found or the remedy."""
    mark = "[green]✓[/]" if check.works else "[red]✗[/]" if check.required else "[yellow]–[/]"
    console.print(f"{mark} {check.name:<16} {escape(check.detail)}", soft_wrap=True)


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/]", soft_wrap=True)


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return ", ".join(value) if isinstance(value, list) else str(value)
