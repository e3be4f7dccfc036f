"""Tables at the end of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rankline.doctor import Check
from rankline.workspace import REPOSITORY, WORK_DIR
from serving.benchmark.report import BenchmarkReport

if TYPE_CHECKING:
    from rankline.pipeline import RunResult


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
    print_report(result.report, console)
    store = result.trained.tracking_uri.replace(f"sqlite:///{Path.cwd()}/", "sqlite:///./")
    _heading(console, "next")
    recipe, workspace = result.recipe.name, result.workspace
    repository = "" if workspace.repository == REPOSITORY else f" --repository {workspace.repository}"
    work_dir = "" if workspace.root == WORK_DIR else f" --work-dir {workspace.root}"
    for command, purpose in (
        (f"mlflow ui --backend-store-uri {store}", "compare runs"),
        (f"rankline serve {recipe}{repository}", "keep the server up"),
        (f"rankline recommend --recipe {recipe} --user 1 --top 10{work_dir}{repository}", "titles for a user"),
    ):
        console.print(f"  [bold]{command}[/]  [dim]# {purpose}[/]", soft_wrap=True)


def print_report(report: BenchmarkReport, console: Console) -> None:
    """Latency percentiles and throughput per batch size."""
    _heading(console, f"{report.model_name}: one request at a time over gRPC, raw ids in, scores out")
    table = _table()
    for name in ("rows", "p50 ms", "p90 ms", "p95 ms", "p99 ms", "rows/s"):
        table.add_column(name, justify="right")
    for result in report.bench:
        latencies = (result.p50_ms, result.p90_ms, result.p95_ms, result.p99_ms)
        table.add_row(f"{result.batch_size:,}", *(f"{ms:.2f}" for ms in latencies), f"{result.rows_per_s:,.0f}")
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
