"""Tables of runs and of their differences."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from rankline.runs.bench_reports import FIGURES
from rankline.serving.loadtest.stats.metrics import METRICS
from rankline.serving.loadtest.summary import number
from rankline.terminal.bench_table import interval_of
from rankline.terminal.console import heading, print_table, show
from rankline.workflows.core.formatting import local_time, quality_figure, quality_interval

if TYPE_CHECKING:
    from rankline.runs.compare import RunComparison
    from rankline.runs.summary import RunSummary

_SERVING = {name: METRICS[name].title for name in FIGURES}


def print_runs(runs: "Sequence[RunSummary]", active: Mapping[str, str], console: Console) -> None:
    """Print a table with one line per run, omitting empty columns. `active` maps run ids to active versions."""
    titles = dict.fromkeys(one.objective[0] for one in runs if one.objective)
    columns = {
        "run": [one.short_id for one in runs],
        "started": [local_time(one.started) for one in runs],
        **{title: [_figure(one, title) for one in runs] for title in titles},
        **{title: [number(one.serving.get(name)) for one in runs] for name, title in _SERVING.items()},
        "version": [one.active_version(active) or one.version for one in runs],
        "": [_state(one, active) for one in runs],
        "what": [f"{one.recipe}: {one.name}{one.failure and f' ({one.failure})'}" for one in runs],
    }
    shown = {title: cells for title, cells in columns.items() if set(cells) - {"", "–"}}
    cells = {title: [value if title == "" else escape(value) for value in values] for title, values in shown.items()}
    print_table(console, cells)


def print_run_comparison(found: "RunComparison", console: Console) -> None:
    show(console, f"[bold]{escape(found.verdict)}[/]")
    for title, columns in tables_of(found):
        heading(console, title)
        print_table(console, {name: [escape(cell) for cell in cells] for name, cells in columns.items()})
    for remark in found.remarks:
        show(console, f"[dim]{escape(remark)}[/]")


def tables_of(found: "RunComparison") -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield the title and columns (heading → cells) of each non-empty table of a run comparison."""
    before, after = (run.label for run in (found.before, found.after))
    if found.quality:
        rows = "the same rows" if found.is_paired else "other rows"
        quality = found.quality
        yield (
            f"quality on {rows}",
            {
                "": [one.title for one in quality],
                before: [quality_figure(one.found.before) for one in quality],
                after: [quality_figure(one.found.after) for one in quality],
                "change": [quality_figure(one.found.change, "+") for one in quality],
                "95 % interval": [quality_interval(*one.found.bounds) for one in quality],
                "verdict": [one.verdict for one in quality],
            },
        )
    if found.serving:
        loads = [one for one in found.serving.differences if one.figure in FIGURES]
        yield (
            "serving",
            {
                "": [one.title for one in loads],
                before: [number(one.before) for one in loads],
                after: [number(one.after) for one in loads],
                "change": [f"{one.change:+.1%}" for one in loads],
                "95 % interval": list(map(interval_of, loads)),
                "verdict": [one.verdict for one in loads],
            },
        )
    yield "what differs", found.differing_columns


def _figure(run: "RunSummary", title: str) -> str:
    return quality_figure(run.objective[1]) if run.objective and run.objective[0] == title else "–"


def _state(run: "RunSummary", active: Mapping[str, str]) -> str:
    if run.active_version(active):
        return "[green]active[/]"
    return "" if run.status == "FINISHED" else f"[yellow]{run.status.lower()}[/]"
