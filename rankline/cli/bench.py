"""The verb `bench`."""

from contextlib import ExitStack
from typing import Annotated

import typer

from rankline.cli.arguments import BATCH_SIZES, JsonFile, RecipeName, Repository, Url, WorkDir
from rankline.cli.checks import batch_sizes_of, check_writable
from rankline.cli.servers import server_to_measure
from rankline.display import CONSOLE, Stages, say
from rankline.options import Overrides, with_options
from rankline.workspace import REPOSITORY, WORK_DIR, workspace_of
from serving.benchmark.config import LoadConfig


@with_options(LoadConfig)
def bench_command(
    recipe: RecipeName = "movielens",
    *,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    url: Url = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option("--batch-sizes", help=f"Rows per request [default: {BATCH_SIZES} in a closed loop, else 1]."),
    ] = None,
    json_file: JsonFile = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="FILE|RUN_ID",
            help="Compare with an earlier report: what --json wrote, or the MLflow run it was logged to.",
        ),
    ] = None,
    max_regression: Annotated[
        float,
        typer.Option(
            "--max-regression",
            min=0,
            help="With --against, fail if a figure is significantly worse, by more than this share.",
        ),
    ] = 0.1,
    overrides: Overrides,
) -> None:
    """Latency percentiles and rows/s over gRPC, logged to the MLflow run that trained the model.

    Requests are kept in flight (a closed loop), sent at a rate, or at the highest rate that a bound allows.

    **Examples**

    rankline bench

    rankline bench movielens --batch-sizes 1,16384 --concurrency 1,4,16 --json bench.json

    rankline bench --rate 200,400 --arrivals poisson --processes 2

    rankline bench --slo p99=10ms

    rankline bench --against bench.json --max-regression 0.05
    """
    from rankline import pipeline
    from rankline.report_tables import print_comparison, print_report
    from rankline.tracking import ReportNotSavedError, find_report
    from serving.benchmark.compare import compare
    from serving.client import Client
    from serving.ensemble import ExportedEnsemble
    from workflows.prepared import PreparedData

    config = overrides.apply(LoadConfig())
    sizes = batch_sizes_of(batch_sizes or (BATCH_SIZES if config.is_closed_loop else "1"))
    check_writable(json_file)
    workspace = workspace_of(recipe, work_dir, repository)
    ensemble, prepared = ExportedEnsemble.load(workspace.ensemble), PreparedData.load(workspace.prepared)
    earlier = find_report(against, ensemble.tracking_uri) if against else None
    unkept: ReportNotSavedError | None = None
    with Stages(["bench"]) as stages, stages.stage("bench") as progress, ExitStack() as stack:
        if url is None:
            url, identity, process_ids = stack.enter_context(server_to_measure(ensemble))
        else:
            identity, process_ids = None, tuple
        client = stack.enter_context(Client(url, recipe))
        try:
            report, served_auc = pipeline.bench(
                client,
                prepared,
                ensemble,
                workspace,
                sizes,
                config,
                identity=identity,
                process_ids=process_ids,
                progress=progress,
            )
            progress.update(1, 1, f"served AUC {served_auc:.4f}")
        except ReportNotSavedError as error:
            report, unkept = error.report, error
    try:
        print_report(report, CONSOLE)
    finally:  # a pipe that was closed costs no file
        if json_file:
            pipeline.write_json(report.to_dict(), json_file)
    comparison = compare(earlier, report, max_regression) if earlier else None
    if comparison:
        print_comparison(comparison, CONSOLE)
    if unkept:
        raise unkept
    say(f"logged to MLflow run {ensemble.run_id}; page, table, JSON and plot in {workspace.report}")
    if report.problems or (comparison and comparison.regressions):
        raise typer.Exit(1)
