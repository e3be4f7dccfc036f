"""The results that commands print when they finish."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from rankline.serving.loadtest.summary import checked
from rankline.terminal.commands import command
from rankline.terminal.console import heading, plain_table, print_table, show
from rankline.training.evaluation import METRICS, objective_of
from rankline.training.models.auto import left_out
from rankline.workflows.core.formatting import local_time, quality_figure

if TYPE_CHECKING:
    from rankline.api.pipeline import RunResult
    from rankline.registry.status import Status
    from rankline.report.run_page import RunReport
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.workflows.schema.model_artifact import TrainedModel


_INDENT = 12


def print_summary(result: "RunResult", report: "RunReport", console: Console) -> None:
    """Print the verdict: quality against a simple baseline, speed, whether the served scores match, and what next."""
    bench = report.bench
    heading(console, f"{result.recipe.name}, version {result.ensemble.version}: trained, served and measured")
    console.print()

    def pair(key: str, *lines: str) -> None:
        for number, line in enumerate(lines):
            show(console, line, f"  {key}" if number == 0 else "", _INDENT)

    pair("quality", *map(escape, report.quality_lines()))
    seeds = result.quality.per_seed
    if len(seeds) > 1:
        name = objective_of(result.quality.heads).name
        mean, std = (quality_figure(find(f"valid_{name}")) for find in (result.quality.mean, result.quality.std))
        pair("", f"{mean} ± {std} over {len(seeds)} seeds")
    if compared := result.trained.manifest.details.get("compared"):
        pair("", *_left_out(compared), f"chosen: {escape(compared['reason'])}")
    pair("speed", *map(escape, report.speed_lines()))
    pair("served", f"{'[green]✓[/] ' * (not bench.problems)}{escape(checked(bench))}")
    for problem in bench.problems:
        pair("", f"[bold red]{escape(problem)}[/]")
    if bench.busy:
        pair("", f"[yellow]! the machine was busy ({escape(bench.busy)}): expect better speed on an idle one[/]")
    console.print()
    pair("report", f"{escape(str(result.workspace.report))}  [dim]charts and all figures[/]")
    for number, (step, purpose) in enumerate(report.steps):
        show(
            console,
            f"[bold]{escape(step)}[/]  [dim]# {purpose}[/]",
            "  next" if number == 0 else "",
            _INDENT,
            wrap=False,
        )


def print_comparison(trained: "TrainedModel", console: Console) -> None:
    """Print the models that `auto` compared, and why it chose one or a blend; nothing for other models."""
    compared = trained.manifest.details.get("compared")
    if not compared:
        return
    heading(console, "models compared on held-out training rows")
    done = [one for one in compared["candidates"] if not one["problem"]]
    if done:
        spreads = [f"{quality_figure(one['score'])} ± {quality_figure(one['spread'])}" for one in done]
        shares = [f"{one['weight']:.0%}" if one["weight"] else "" for one in done]
        names = [one["name"] for one in done]
        print_table(console, {"": names, METRICS[compared["metric"]].title: spreads, "share": shares})
    for line in (*_left_out(compared), f"chosen: {compared['reason']}"):
        show(console, line)


def _left_out(compared: Mapping[str, Any]) -> list[str]:
    return [f"[dim]{escape(line)}[/]" for line in left_out(compared)]


def next_commands(result: "RunResult") -> list[tuple[str, str]]:
    """Return commands that use what a run made, each with its purpose."""
    recipe, work_dir, repository = result.recipe.called, result.workspace.root, result.workspace.repository
    found = [(command("serve", recipe, repository=repository), "keep serving")]
    if result.recipe.file is not None:
        found.append((command("predict", recipe, "--input", "FILE", repository=repository), "score raw rows"))
    if result.prepared.item is not None:
        histories = result.prepared.histories()
        user = 1 if histories is None else histories[0][0].as_py()
        words = ("recommend", recipe, "--user", str(user), "--top", "10")
        found.append((command(*words, work_dir=work_dir, repository=repository), "recommend titles to a user"))
    return [*found, (command("ui", work_dir=work_dir), "compare runs")]


def print_items(items: Iterable[Mapping[str, Any]], console: Console) -> None:
    rows = list(items)
    table = plain_table()
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right" if name == "score" else "left")
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row.values()))
    console.print(table)


def print_engines(ensemble: "ExportedEnsemble", console: Console) -> None:
    details = ensemble.manifest.details
    steps = ", two steps" if len(details["native"]) > 1 else ""
    show(console, f"engine {details['engine']}, {_runtime(details['native'])}{steps}")
    if about := details.get("uncompiled"):
        show(
            console,
            f"not compiled: {', '.join(about['operators'])}; the workflow runs through NVTabular and takes "
            f"{about['row_ms']:.1f} ms per row, compared with about 0.1 ms for a compiled plan",
        )


def _runtime(native: Mapping[str, bool]) -> str:
    """Describe which steps run in native backends, assuming that these are installed on the server's machine."""
    names = {"transform": "the workflow", "predict": "the model"}
    in_python = [names.get(step, "all") for step, is_native in native.items() if not is_native]
    if not in_python:
        return "native backends"
    return "Python backends" if len(in_python) == len(native) else f"native backends, {in_python[0]} in Python"


def print_versions(versions: "Iterable[ExportedEnsemble]", console: Console) -> None:
    versions = list(versions)
    titles, figures = zip(*(_objective_figure(version.offline_metrics) for version in versions), strict=True)
    columns = {
        "version": [str(version.version) for version in versions],
        "exported": [local_time(datetime.fromisoformat(version.manifest.created_at)) for version in versions],
        "engine": [version.manifest.details["engine"] for version in versions],
        titles[0] if len(set(titles)) == 1 else "quality": figures,
        "MLflow run": [version.run_id[:8] for version in versions],
        "": ["[green]active[/]" if version.is_active else "" for version in versions],
    }
    print_table(console, columns, left=len(columns))


def print_statuses(found: "Sequence[Status]", console: Console) -> None:
    columns = {
        "ensemble": [escape(one.name) for one in found],
        "version": [str(one.version) for one in found],
        "champion": ["" if one.registry is None else _said(one.champion, one) for one in found],
        "server": ["" if one.served is None else _said(one.served, one) for one in found],
        "since": [local_time(one.since) for one in found],
        "quality": [" ".join(_objective_figure(one.metrics)) if one.metrics else "–" for one in found],
        "engine": [one.engine for one in found],
        "MLflow run": [one.run_id[:8] or "–" for one in found],
        "data": [one.data or "–" for one in found],
        "also there": [", ".join(map(str, one.others)) or "–" for one in found],
    }
    print_table(console, {name: cells for name, cells in columns.items() if any(cells)})
    for line in (line for one in found for line in one.disagreements):
        show(console, f"[bold yellow]{escape(line)}[/]")


def _said(version: int | None, status: "Status") -> str:
    return "the same" if version == status.version else f"[bold yellow]{version or '–'}[/]"


def _objective_figure(metrics: Mapping[str, float]) -> tuple[str, str]:
    """Return the objective's title and formatted value, or a dash for a model that was trained elsewhere."""
    from rankline.training.evaluation import OBJECTIVES

    found = ((o.title, quality_figure(metrics[f"valid_{o.name}"])) for o in OBJECTIVES if f"valid_{o.name}" in metrics)
    return next(found, ("quality", "–"))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return quality_figure(value)
    return ", ".join(value) if isinstance(value, list) else str(value)
