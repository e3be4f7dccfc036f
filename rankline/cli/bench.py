from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rankline.cli.options.arguments import (
    BATCH_SIZES,
    BenchUrl,
    JsonFile,
    RecipeName,
    Repository,
    WorkDir,
    batch_sizes_of,
    check_writable,
)
from rankline.recipes.overrides import Overrides, with_options
from rankline.recipes.workspace import REPOSITORY, WORK_DIR, Workspace, exported_workspace
from rankline.scoring.backends import server_for
from rankline.serving.loadtest.config import LoadConfig
from rankline.terminal.console import CONSOLE, Stages, say, warn_busy
from rankline.workflows.core.machine import busyness

if TYPE_CHECKING:
    import pyarrow as pa

    from rankline.report.run_page import RunReport
    from rankline.serving.loadtest.report.report import BenchmarkReport
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.workflows.preprocess.prepared_data import PreparedData


@with_options(LoadConfig)
def bench_command(
    recipe: RecipeName = "movielens",
    *,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    url: BenchUrl = None,
    batch_sizes: Annotated[
        str | None, typer.Option(help=f"Rows per request [default: {BATCH_SIZES} in a closed loop, otherwise 1].")
    ] = None,
    json_file: JsonFile = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|RUN_ID",
            help="Compare with an earlier report: a file written by --json, or the MLflow run it was logged to.",
        ),
    ] = None,
    max_regression: Annotated[
        float,
        typer.Option(
            min=0,
            help="With --against, fail if any result is significantly worse and the change exceeds this fraction.",
        ),
    ] = 0.1,
    overrides: Overrides,
) -> None:
    """Measure latency percentiles and rows/s over gRPC, and log them to the MLflow run that trained the model.

    Requests are kept in flight (closed loop), sent at a fixed rate, or at the highest rate that meets a latency target.

    **Examples**

    rankline bench

    rankline bench movielens --batch-sizes 1,16384 --concurrency 1,4,16 --json bench.json

    rankline bench --rate 200,400 --arrivals poisson --processes 2

    rankline bench --slo p99=10ms

    rankline bench --against bench.json --max-regression 0.05
    """
    config = overrides.apply(LoadConfig())
    sizes = batch_sizes_of(batch_sizes or (BATCH_SIZES if config.is_closed_loop else "1"))
    check_writable(json_file)
    if config.is_trace:
        config.arrivals_at(1)  # validates the trace file, which has its own rates
    workspace = exported_workspace(recipe, work_dir, repository)

    from rankline.api.pipeline import write_json
    from rankline.runs.reader import check_run
    from rankline.runs.store import catch_up, check_store, uri_of_run
    from rankline.runs.summary import find_report
    from rankline.scoring.sample import is_foreign, load_sample
    from rankline.serving.loadtest.compare import check_comparable
    from rankline.serving.loadtest.runner import check_batch_sizes
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.terminal.bench_table import print_report
    from rankline.workflows.preprocess.prepared_data import PreparedData

    ensemble = ExportedEnsemble.load(workspace.ensemble)
    data = load_sample(workspace.sample) if is_foreign(ensemble) else PreparedData.load(workspace.prepared)
    check_batch_sizes(sizes, ensemble.model_config.max_batch_size)
    uri = uri_of_run(ensemble.tracking_uri, work_dir)
    earlier = find_report(against, uri) if against else None
    if earlier:
        check_comparable(earlier, sizes, config)
    if ensemble.run_id:
        check_store(uri)
        catch_up(workspace.root)  # the run may not be in the store yet
        check_run(uri, ensemble.run_id)
    check_writable(workspace.bench / "bench.json")
    if busy := busyness():
        warn_busy(busy)
    found = _measure(ensemble, data, workspace, sizes, config, url)
    report = found.bench
    has_regressed = False

    def show() -> None:
        nonlocal has_regressed
        print_report(report, CONSOLE)
        has_regressed = earlier is not None and _compare(earlier, report, max_regression)

    with ExitStack() as at_end:  # a full disk must not lose the table, nor a closed pipe the report
        at_end.callback(save_report, found, workspace)
        at_end.callback(show)
        if json_file:
            write_json(report.to_dict(), json_file)
    if report.problems or has_regressed:
        raise typer.Exit(1)


def _measure(
    ensemble: "ExportedEnsemble",
    data: "PreparedData | pa.Table",
    workspace: Workspace,
    batch_sizes: Sequence[int],
    config: LoadConfig,
    url: str | None,
) -> "RunReport":
    from rankline.api import pipeline
    from rankline.report.run_page import RunReport
    from rankline.workflows.preprocess.prepared_data import PreparedData

    with (
        Stages(["bench"]) as stages,
        stages.stage("bench") as progress,
        server_for(workspace.ensemble, url, with_identity=True) as server,
    ):
        if not isinstance(data, PreparedData):
            report = pipeline.bench_rows(server, data, ensemble, batch_sizes, config, progress=progress)
            progress.update(1, 1, f"the scores of {data.num_rows:,} rows match those computed in this process")
            return RunReport(ensemble=ensemble, bench=report)
        found = pipeline.bench(server, data, ensemble, batch_sizes, config, progress=progress)
        progress.update(1, 1, pipeline.describe_served(data, found.served))
    trained = pipeline.trained_by(ensemble.run_id, workspace.model)
    return RunReport(ensemble=ensemble, bench=found.report, prepared=data, trained=trained, analysis=found.analysis)


def _compare(earlier: "BenchmarkReport", report: "BenchmarkReport", max_regression: float) -> bool:
    from rankline.serving.loadtest.compare import compare
    from rankline.terminal.bench_table import print_comparison

    comparison = compare(earlier, report, max_regression)
    print_comparison(comparison, CONSOLE)
    return bool(comparison.regressions)


def save_report(found: "RunReport", workspace: Workspace, *, of_run: bool = False) -> None:
    """Write and log a report. The page of a run is report.html; that of a benchmark is named after its time."""
    from rankline.runs.bench_reports import PageFile, curves_of, log_report
    from rankline.runs.store import catch_up, uri_of_run

    catch_up(workspace.root)
    ensemble = found.ensemble
    uri = uri_of_run(ensemble.tracking_uri, workspace.root)
    if ensemble.run_id:
        found = replace(found, curves=curves_of(uri, ensemble.run_id))
    path = workspace.report if of_run else workspace.bench / f"{datetime.now():%Y-%m-%d-%H%M%S}.html"
    page = PageFile(path=path, make=found.page, is_of_run=of_run)
    log_report(found.bench, uri, ensemble.run_id, workspace.bench, page)
    if not of_run:
        logged = f", also in MLflow run {ensemble.run_id[:8]}" if ensemble.run_id else ""
        say(f"report: {path}{logged}")
