"""The commands `runs`, `compare`, `sync` and `ui` for recorded runs."""

import re
import signal
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankline.cli.options import completion
from rankline.cli.options.arguments import JsonFile, Repository, WorkDir, check_writable
from rankline.recipes import recipe_named
from rankline.recipes.workspace import NAMES, REPOSITORY, WORK_DIR, exported_workspace
from rankline.terminal.console import CONSOLE, ERRORS, note, say
from rankline.training.tracking.config import journals_of
from rankline.training.tracking.journal import left_in
from rankline.workflows.core.errors import ConfigError

if TYPE_CHECKING:
    from rankline.serving.repository.ensemble import ExportedEnsemble


def runs_command(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="[RECIPE]", help="Show only runs of this recipe.", autocompletion=completion.recipes),
    ] = None,
    *,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    limit: Annotated[int, typer.Option(min=1, help="Number of runs to show, latest first.")] = 20,
    json_file: JsonFile = None,
) -> None:
    """List training runs with their quality and speed, their exported versions, and the active version.

    **Examples**

    rankline runs

    rankline runs movielens --limit 5 --json runs.json
    """
    check_writable(json_file)
    from rankline.api.pipeline import write_json
    from rankline.runs.reader import open_reader
    from rankline.runs.run_tables import print_runs
    from rankline.runs.store import uri_of
    from rankline.runs.summary import runs_in
    from rankline.serving.repository.ensemble import active_versions

    if recipe is not None and not re.fullmatch(NAMES, recipe):  # such as a recipe file
        recipe = recipe_named(recipe).name
    uri = uri_of(work_dir)
    if not (found := runs_in(open_reader(uri), recipe, limit)):
        raise ConfigError(f"there are no runs in {uri}. Train a model: rankline run movielens")
    active = active_versions(repository)
    if json_file:
        versions = [run.active_version(active) for run in found]
        runs = [
            {**run.to_dict(), "version": version or run.version, "is_active": bool(version)}
            for run, version in zip(found, versions, strict=True)
        ]
        write_json({"runs": runs}, json_file)
    print_runs(found, active, CONSOLE)


def compare_command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN…",
            help="Run IDs, ID prefixes, or versions such as movielens@3; each run is compared with the first.",
            autocompletion=completion.runs,
        ),
    ],
    *,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the comparison as an HTML page.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare runs by quality on the same rows, latency, throughput and settings, and show confidence intervals.

    **Examples**

    rankline compare movielens@1 movielens@2

    rankline compare 3f2a9c1d 8b1e77aa --html compare.html
    """
    check_writable(html, "html")
    check_writable(json_file)
    if len(runs) < 2:
        raise ConfigError(f"expected at least 2 runs, got {len(runs)}. List them with: rankline runs")
    from rankline.api.pipeline import write_json
    from rankline.report.comparison_page import comparison_page
    from rankline.runs.compare import compare_runs
    from rankline.runs.reader import open_reader
    from rankline.runs.run_tables import print_run_comparison
    from rankline.runs.store import uri_of
    from rankline.runs.summary import find_run
    from rankline.workflows.storage.artifacts import output_file

    versions = [_version_of(named, repository) for named in runs]
    store = open_reader(uri_of(work_dir))
    first, *others = [
        replace(find_run(store, version.run_id), called=named, engine=str(version.manifest.details["engine"]))
        if version
        else find_run(store, named)
        for named, version in zip(runs, versions, strict=True)
    ]
    comparisons = [compare_runs(store, first, other) for other in others]
    if json_file:
        write_json({"comparisons": [found.to_dict() for found in comparisons]}, json_file)
    if html:
        with output_file(html) as file:
            file.write_text(comparison_page(comparisons).html(), encoding="utf-8")
    for number, found in enumerate(comparisons):
        if number:
            CONSOLE.print()
        print_run_comparison(found, CONSOLE)


def _version_of(named: str, repository: Path) -> "ExportedEnsemble | None":
    """Return a version such as movielens@3, or None for other names."""
    from rankline.serving.repository.ensemble import ExportedEnsemble

    name, is_version, number = named.partition("@")
    if not is_version:
        return None
    if not number.isdecimal():
        raise ConfigError(f"{named!r} is invalid, expected a version such as movielens@3.")
    ensemble = ExportedEnsemble.load(exported_workspace(name, repository=repository).ensemble, int(number))
    if not ensemble.run_id:
        raise ConfigError(
            f"{named} has no MLflow run to compare, because its model was trained elsewhere. Pass a version that was "
            f"trained here, or compare only speed: rankline bench {name} --against FILE"
        )
    return ensemble


def ui_command(
    *,
    work_dir: WorkDir = WORK_DIR,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for the MLflow UI; 0 picks a free port.")] = 5000,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the MLflow UI in a browser, if available.")
    ] = True,
) -> None:
    """Serve MLflow's UI until Ctrl-C, preconfigured with the relevant columns and charts.

    If MLFLOW_TRACKING_URI names a server, configure its pages instead and print its address.

    **Example**

    rankline ui --port 0
    """
    import webbrowser

    from rankline.runs.mlflow_ui import lay_out, serve_pages
    from rankline.runs.store import check_store, open_store, uri_of

    uri = uri_of(work_dir)
    check_store(uri)
    pages = lay_out(open_store(uri))
    if not pages:
        raise ConfigError(f"there are no runs in {uri}. Train a model: rankline run movielens")
    with ExitStack() as stack:
        with ERRORS.status("waiting for MLflow"):
            address, wait = stack.enter_context(serve_pages(uri, port))
        for name, path in pages.items():
            say(f"{name}  {address}{path}")
        if open_browser:
            webbrowser.open(address + next(iter(pages.values())))
        if wait:
            stop = threading.Event()
            signal.signal(signal.SIGINT, lambda *_: stop.set())
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            say("Press Ctrl-C to stop")
            wait(stop)
            say("stopped")


def sync_command(*, work_dir: WorkDir = WORK_DIR) -> None:
    """Deliver data that runs logged while the MLflow server was unreachable, without losses or duplicates.

    Active runs are skipped, because they deliver by themselves. A run that was killed is marked as killed.

    **Example**

    rankline sync
    """
    if not left_in(journals_of(work_dir)):
        say(f"{journals_of(work_dir)} contains nothing to deliver")
        return
    from rankline.runs.store import deliver

    outcomes = list(deliver(work_dir))
    for one in outcomes:
        if one.failure:
            note(f"Warning: {one.words}")
        else:
            say(one.words)
    if any(one.failure for one in outcomes):
        raise typer.Exit(1)
    if not outcomes:
        say("nothing to deliver except from runs still in progress")
