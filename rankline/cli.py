"""The command line: one verb for each arrow of the flow, and `run` for all of them."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from rankline.arguments import RecipeName, WorkDir
from rankline.convert import convert_command
from rankline.display import CONSOLE, ERRORS, Stages, in_a_line, say
from rankline.import_data import import_command
from rankline.launch_config import LaunchConfig
from rankline.options import Overrides, with_options
from rankline.quiet import quiet_libraries
from rankline.recipes import recipe_named
from rankline.sim import CONTEXT, sim_command
from rankline.source import SourceConfig
from rankline.transcode import transcode_command
from rankline.workspace import REPOSITORY, WORK_DIR, Workspace
from serving.benchmark.config import LoadConfig
from serving.export_config import ExportConfig
from training.config import SessionConfig, TrainConfig, WorkersConfig
from workflows.dask_config import DaskConfig
from workflows.errors import ConfigError, RanklineError
from workflows.prepare_config import PrepareConfig
from workflows.sequence_config import SequenceConfig

if TYPE_CHECKING:
    from serving.client import Client
    from serving.ensemble import ExportedEnsemble

GRPC_PORT = 8001  # Triton's own
BATCH_SIZES = "1,4,16,64,256,1024,4096,16384"


class _Group(TyperGroup):
    """Prints what a user can mend in one or two lines; the traceback is behind --debug."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (RanklineError, OSError) as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            ERRORS.print(f"[bold red]Error:[/] {escape(in_a_line(error))}", soft_wrap=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    help="From raw interactions to served scores, measured. Start with: **rankline run movielens**",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Repository = Annotated[Path, typer.Option("--repository", help="Where ensembles are exported to.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Train this many models, with seeds one after another.")]
BatchSizes = Annotated[str, typer.Option("--batch-sizes", help="Rows per request, separated by commas.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="HOST:PORT", help="gRPC of a running server; without it one is started for the call."
    ),
]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result for machines too.")]


def _show_version(is_asked_for: bool) -> None:
    if is_asked_for:
        say(f"rankline {version('rankline')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and what the libraries say.")] = False,
    show_version: Annotated[  # noqa: ARG001  (its callback has done it: without a verb this function is not called)
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Set up the process before any verb."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would wait for a network that may not be there
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch's threads would spin on cores that the loader needs
    if not debug:
        quiet_libraries()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through every `finally`, so that servers stop
    signal.signal(signal.SIGINT, _interrupt)


@app.command()
@with_options(SourceConfig, ExportConfig, of_recipe=(PrepareConfig, SequenceConfig, TrainConfig))
def run(
    recipe: RecipeName,
    *,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    seeds: Seeds = 1,
    batch_sizes: BatchSizes = BATCH_SIZES,
    json_file: JsonFile = None,
    overrides: Overrides,
) -> None:
    """Everything: prepare, train, export, serve, bench, and a summary.

    **Examples**

    rankline run movielens

    rankline run movielens --data-dir ml-25m --batch-size 32768

    rankline run movielens --download ml-latest-small --seeds 5 --json result.json
    """
    from rankline import pipeline
    from rankline.summary import print_summary

    chosen = recipe_named(recipe).with_overrides(overrides)
    source, export_config = overrides.apply(SourceConfig()), overrides.apply(ExportConfig())
    sizes = _parse_batch_sizes(batch_sizes)
    _check_writable(json_file)
    with Stages(pipeline.STAGES) as stages:
        result = pipeline.run(
            chosen,
            source,
            _workspace(recipe, work_dir, repository),
            stages,
            export_config=export_config,
            num_seeds=seeds,
            batch_sizes=sizes,
        )
    if json_file:
        pipeline.write_json(result.to_dict(), json_file)
    print_summary(result, CONSOLE)


@app.command()
@with_options(SourceConfig, DaskConfig, of_recipe=(PrepareConfig, SequenceConfig))
def prepare(recipe: RecipeName, *, work_dir: WorkDir = WORK_DIR, overrides: Overrides) -> None:
    """Raw rows to encoded Parquet, a fitted NVTabular workflow and the feature spec.

    **Examples**

    rankline prepare movielens --data-dir ml-1m --split time

    rankline prepare movielens --rows 1000000 --frequency-threshold 5 --hash-buckets 100

    rankline prepare criteo --data-dir criteo --dask local:8

    rankline prepare criteo --data-dir /shared/criteo --work-dir /shared/work --dask tcp://scheduler:8786
    """
    from rankline import pipeline

    dask = overrides.apply(DaskConfig())
    with Stages(["source", "prepare"]) as stages:
        prepared, _ = pipeline.prepare(
            recipe_named(recipe).with_overrides(overrides),
            overrides.apply(SourceConfig()),
            _workspace(recipe, work_dir),
            stages,
            dask,
        )
    say(f"prepared data: {prepared.path}")


app.command(name="convert")(convert_command)
app.command(name="import")(import_command)
app.command(name="transcode")(transcode_command)
app.command(name="sim", context_settings=CONTEXT)(sim_command)


@app.command()
@with_options(SessionConfig, WorkersConfig, LaunchConfig, of_recipe=(TrainConfig,))
def train(recipe: RecipeName, *, work_dir: WorkDir = WORK_DIR, seeds: Seeds = 1, overrides: Overrides) -> None:
    """Train on prepared data, tracked in MLflow.

    **Examples**

    rankline train movielens --epochs 5 --learning-rate 0.002

    rankline train movielens --checkpoint-every 500

    rankline train movielens --checkpoint-every 500 --resume

    rankline train movielens --precision bfloat16 --xla --tensorboard

    rankline train movielens --workers 4

    rankline train movielens --hosts a:4,b:4 --scale-learning-rate sqrt --warmup-steps 500
    """
    from rankline.worker import Worker, limit_threads, take_cores

    worker = Worker.of(os.environ)
    with worker.at_work() as display:
        several, options = overrides.apply(WorkersConfig()), overrides.apply(LaunchConfig())
        limit_threads(options.threads, worker.local_size)
        take_cores(options.affinity, worker)
        from rankline import pipeline
        from workflows.prepared import PreparedData

        workspace = _workspace(recipe, work_dir)
        chosen, session = recipe_named(recipe).with_overrides(overrides), overrides.apply(SessionConfig())
        if worker.is_alone and options.is_asked_for(several):
            from rankline.workers import launch

            PreparedData.load(workspace.prepared)  # each worker would find out later
            command = [sys.executable, *sys.orig_argv[1:]]
            with display.stage("train") as progress:
                model = launch(command, several, options, workspace.workers, progress)
        else:
            with worker.in_world(several) as world:
                prepared = PreparedData.load(workspace.prepared)
                trained, _ = pipeline.train(
                    chosen,
                    prepared,
                    workspace,
                    display,
                    seeds,
                    session,
                    workers=several,
                    world=world,
                    is_elastic=worker.is_elastic,
                )
            model = {"path": str(trained.path), "run_id": trained.run_id, "tracking_uri": trained.tracking_uri}
    worker.show(model)


@app.command()
@with_options(ExportConfig)
def export(
    recipe: RecipeName, *, work_dir: WorkDir = WORK_DIR, repository: Repository = REPOSITORY, overrides: Overrides
) -> None:
    """Workflow and model to a new version of one Triton ensemble, if both agree with what is served.

    **Examples**

    rankline export movielens --repository model_repository

    rankline export movielens --engine onnx --fused
    """
    from rankline import pipeline
    from rankline.summary import print_engines
    from workflows.prepared import PreparedData

    workspace = _workspace(recipe, work_dir, repository)
    with Stages(["export"]) as stages:
        prepared = PreparedData.load(workspace.prepared)
        ensemble = pipeline.export(recipe_named(recipe), overrides.apply(ExportConfig()), prepared, workspace, stages)
    print_engines(ensemble, CONSOLE)


@app.command()
def serve(
    recipe: RecipeName = "movielens",
    *,
    repository: Repository = REPOSITORY,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65534, help="gRPC port; HTTP is the one before it, metrics the one after it. 0 takes free ones."
        ),
    ] = GRPC_PORT,
    replicas: Annotated[
        int, typer.Option(min=1, help="This many servers behind the one address; more than one needs nginx.")
    ] = 1,
    watch: Annotated[
        bool, typer.Option("--watch", help="Take over what `rankline export` and `rankline rollback` make.")
    ] = False,
    log_file: Annotated[
        Path | None,
        typer.Option(help="Keep the server's log here; with replicas, -1, -2, … and -balancer go before the suffix."),
    ] = None,
) -> None:
    """Run a real Triton on this machine, on loopback, until Ctrl-C.

    **Examples**

    rankline serve

    rankline serve movielens --port 0 --watch

    rankline serve movielens --replicas 2 --log-file triton.log
    """
    from serving.balancer import BalancerConfig
    from serving.ensemble import ExportedEnsemble
    from serving.replicas import ReplicasConfig, ReplicaSet
    from serving.server import EmbeddedServer
    from serving.supervise import Supervisor, config_of

    if port == 1:
        raise ConfigError("--port is 1, and HTTP takes the port before it. Give 0 for free ports, or 2 and above.")
    ensemble = ExportedEnsemble.load(_workspace(recipe, repository=repository).ensemble)
    ports = {"grpc_port": port, "http_port": port and port - 1, "metrics_port": port and port + 1}
    server: EmbeddedServer | ReplicaSet
    if replicas == 1:
        server = EmbeddedServer(config_of(ensemble, **ports, log_path=log_file))
        run = Supervisor(server, ensemble, follow_versions=watch, tell=say).run
    else:
        config = ReplicasConfig(num_replicas=replicas, balancer=BalancerConfig(**ports), log_path=log_file)
        server = ReplicaSet(ensemble, config, follow_versions=watch, tell=say)
        run = server.run
    with CONSOLE.status(f"starting tritonserver with {ensemble.path}, version {ensemble.version}"):
        server.start()
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        say(f"gRPC     {server.endpoints.grpc}")
        say(f"HTTP     {server.endpoints.http}/v2/models/{ensemble.name}")
        metrics = server.metrics_urls if isinstance(server, ReplicaSet) else (server.endpoints.metrics,)
        say(f"metrics  {' '.join(metrics)}")
        say(f"Ctrl-C stops it. Ask it with: rankline predict --recipe {recipe} --url {server.endpoints.grpc} …")
        run(stop)
    finally:
        server.stop()
    say("stopped")


@app.command()
def versions(recipe: RecipeName = "movielens", *, repository: Repository = REPOSITORY) -> None:
    """List the exported versions of an ensemble.

    **Example**

    rankline versions movielens
    """
    from rankline.summary import print_versions
    from serving.ensemble import versions as versions_in

    print_versions(versions_in(_workspace(recipe, repository=repository).ensemble), CONSOLE)


@app.command()
def rollback(
    recipe: RecipeName = "movielens",
    *,
    to: Annotated[int | None, typer.Option("--to", help="Version; without it the one before.", min=1)] = None,
    repository: Repository = REPOSITORY,
) -> None:
    """Make an earlier version the one that answers; `rankline serve --watch` takes it over at once.

    **Examples**

    rankline rollback movielens

    rankline rollback movielens --to 1
    """
    from serving.ensemble import ExportedEnsemble, before

    path = _workspace(recipe, repository=repository).ensemble
    wanted = before(path) if to is None else ExportedEnsemble.load(path, to)
    wanted.activate()
    say(f"{path}: version {wanted.version} answers")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def predict(
    context: typer.Context,
    recipe: Annotated[str, typer.Option("--recipe", help="Whose ensemble.")] = "movielens",
    *,
    input_file: Annotated[str | None, typer.Option("--input", metavar="FILE", help='Rows; "-" is stdin.')] = None,
    format_name: Annotated[str | None, typer.Option("--format", help="csv, parquet or jsonl.")] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Default: stdout.")] = None,
    repository: Repository = REPOSITORY,
    url: Url = None,
) -> None:
    """Score rows: one from options, or many from a CSV, Parquet or JSON lines file.

    **Examples**

    rankline predict --userId 1 --movieId 31

    rankline predict --input rows.csv --output scored.csv

    echo '{"userId": 1, "movieId": 31}' | rankline predict --input -
    """
    from rankline.rows import format_of, from_options, read_rows, select, typed_row, write_scores

    if (input_file is None) == (not context.args):
        raise ConfigError("give either one row, such as --userId 1 --movieId 31, or --input FILE.")
    given = from_options(context.args)
    found = format_of("-" if input_file is None else input_file, format_name)
    _check_writable(output)
    with _client(recipe, repository, url) as client:
        required = [column for column in client.schema.columns if column.is_required]
        texts = [column.name for column in required if column.values.datatype == "BYTES" and not column.lengths]
        if input_file is None:
            rows = sent = typed_row(given, texts)
        else:
            rows = read_rows(input_file, found, texts)
            sent = select(rows, [column.name for column in required])
        scores = client.predict(sent)
    write_scores(rows, scores, found, output)


@app.command()
def recommend(
    recipe: Annotated[str, typer.Option("--recipe", help="Whose ensemble.")] = "movielens",
    *,
    user: Annotated[
        str, typer.Option("--user", help="Who to recommend to; somebody unseen gets what most people like.")
    ],
    top: Annotated[int, typer.Option("--top", min=1, help="How many items.")] = 10,
    with_known: Annotated[
        bool, typer.Option("--with-known", help="Rank the items of the user's history too, where there is one.")
    ] = False,
    work_dir: WorkDir = WORK_DIR,
    repository: Repository = REPOSITORY,
    url: Url = None,
) -> None:
    """Score the whole catalogue for one user through the server, and show the best.

    Where rows have histories, one request has the user's history and all items that the user does not have.

    **Examples**

    rankline recommend --user 1 --top 10

    rankline recommend --recipe amazon-sim --user A2IBPI20UZIR0U
    """
    from rankline.recommend import best_items
    from rankline.summary import print_items
    from serving.ensemble import ExportedEnsemble
    from workflows.prepared import PreparedData

    workspace = _workspace(recipe, work_dir, repository)
    prepared = PreparedData.load(workspace.prepared)
    if url is None:
        ExportedEnsemble.load(workspace.ensemble).check_made_from(prepared.manifest)
    with _client(recipe, repository, url) as client:
        items = best_items(client, prepared, user, top, with_known=with_known, tell=say)
    print_items(items, CONSOLE)


@app.command()
@with_options(LoadConfig)
def bench(
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
            help="With --against, fail where a figure is surely worse by more than this share.",
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
    from rankline.summary import print_comparison, print_report
    from rankline.tracking import UnkeptReportError, find_report
    from serving.benchmark.compare import compare
    from serving.client import Client
    from serving.ensemble import ExportedEnsemble
    from workflows.prepared import PreparedData

    config = overrides.apply(LoadConfig())
    sizes = _parse_batch_sizes(batch_sizes or (BATCH_SIZES if config.is_closed_loop else "1"))
    _check_writable(json_file)
    workspace = _workspace(recipe, work_dir, repository)
    ensemble, prepared = ExportedEnsemble.load(workspace.ensemble), PreparedData.load(workspace.prepared)
    earlier = find_report(against, ensemble.tracking_uri) if against else None
    unkept: UnkeptReportError | None = None
    with Stages(["bench"]) as stages, stages.stage("bench") as progress, ExitStack() as stack:
        if url is None:
            url, identity, process_ids = stack.enter_context(_server_to_measure(ensemble))
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
        except UnkeptReportError as error:
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


@app.command()
def doctor() -> None:
    """Check this machine and say what works.

    **Example**

    rankline doctor
    """
    from rankline.doctor import examine
    from rankline.summary import print_check

    checks = []
    for check in examine():  # each is shown as soon as it is known
        print_check(check, CONSOLE)
        checks.append(check)
    if any(check.required and not check.works for check in checks):
        raise typer.Exit(1)


def main() -> None:
    """Entry point of the `rankline` command."""
    app()


def _workspace(recipe: str, root: Path = WORK_DIR, repository: Path = REPOSITORY) -> Workspace:
    return Workspace(recipe=recipe_named(recipe).name, root=root, repository=repository)


def _interrupt(*_: object) -> None:
    ERRORS.print("\nstopping; what is whole stays …")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would cut the clean-up short
    raise KeyboardInterrupt


def _parse_batch_sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--batch-sizes is {text!r}, expected whole numbers and commas: 1,64,4096") from None


def _check_writable(path: Path | None) -> None:
    """Find out that a result cannot be written before it is worked for, not after."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass


@contextmanager
def _client(recipe: str, repository: Path, url: str | None) -> Iterator["Client"]:
    """A client of the server at `url`, or of one that serves the exported ensemble as long as the block lasts."""
    from serving.client import Client
    from serving.ensemble import ExportedEnsemble
    from serving.server import EmbeddedServer
    from serving.supervise import config_of

    with ExitStack() as stack:
        if url is None:
            ensemble = ExportedEnsemble.load(_workspace(recipe, repository=repository).ensemble)
            server = stack.enter_context(EmbeddedServer(config_of(ensemble)))
            url = server.endpoints.grpc
        yield stack.enter_context(Client(url, recipe))


@contextmanager
def _server_to_measure(ensemble: "ExportedEnsemble") -> Iterator[tuple[str, "Client", Callable[[], Sequence[int]]]]:
    """A server of the ensemble and of a model that does nothing: its address, a client of that model, its processes."""
    from serving.benchmark.identity import BACKENDS, NAME, write_identity
    from serving.client import Client
    from serving.server import EmbeddedServer
    from serving.supervise import config_of

    with TemporaryDirectory(prefix="rankline-identity-") as directory:
        write_identity(Path(directory))
        config = config_of(ensemble)
        config = replace(
            config,
            repositories=(*config.repositories, Path(directory)),
            models=(*config.models, NAME),
            backends=(*config.backends, BACKENDS),
        )
        with EmbeddedServer(config) as server, Client(server.endpoints.grpc, NAME) as identity:
            yield server.endpoints.grpc, identity, server.process_ids
