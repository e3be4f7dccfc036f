import shlex
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from rankline.cli.options.arguments import Repository, WorkDir
from rankline.cli.options.completion import recipes
from rankline.recipes.workspace import REPOSITORY, WORK_DIR, Workspace, exported_workspace, requests_of
from rankline.serving.server.ports import GRPC_PORT
from rankline.terminal.console import CONSOLE, say, show
from rankline.workflows.core.errors import ConfigError

if TYPE_CHECKING:
    from rankline.registry.alias_follower import AliasFollower
    from rankline.serving.repository.ensemble import ExportedEnsemble


def serve_command(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]",
            help="Recipe or ensemble name. [default: the model in --follow, or movielens]",
            autocompletion=recipes,
        ),
    ] = None,
    *,
    repository: Repository = REPOSITORY,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65534, help="gRPC port; metrics use the next port that HTTP does not use. 0 picks free ports."
        ),
    ] = GRPC_PORT,
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Also serve HTTP on this port (0 picks a free one). Large JSON requests can crash the server.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Switch to versions activated by `rankline export` and `rankline rollback`.")
    ] = False,
    expect_fingerprint: Annotated[
        str | None,
        typer.Option(
            metavar="SHA256",
            help='Serve only the version whose manifest.json has this "fingerprint". Cannot be combined with --watch '
            "or --follow.",
        ),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(
            metavar="models:/NAME@ALIAS",
            help="Serve the version behind an alias in MLflow's model registry and switch when the alias moves; "
            "versions are downloaded into the repository.",
        ),
    ] = None,
    work_dir: WorkDir = WORK_DIR,
    log_file: Annotated[Path | None, typer.Option(help="Write the server's log to this file.")] = None,
) -> None:
    """Run Triton on the loopback interface until Ctrl-C.

    Restarts the server if it crashes or hangs.

    **Examples**

    rankline serve

    rankline serve movielens --port 0 --watch

    rankline serve movielens --http-port 8000

    rankline serve --follow models:/movielens@champion

    rankline serve movielens --log-file triton.log
    """
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.serving.server.embedded import EmbeddedServer
    from rankline.serving.server.supervisor import Supervisor, config_of

    follows = watch or follow is not None
    if follows and expect_fingerprint:
        raise ConfigError(
            "--expect-fingerprint pins one version, but --watch and --follow switch versions. Remove one of these "
            "options."
        )
    follower = None
    if follow is None:
        recipe = recipe or "movielens"
        ensemble = ExportedEnsemble.load(exported_workspace(recipe, repository=repository).ensemble)
    else:
        follower, ensemble = _follower(follow, recipe, work_dir, repository)
        recipe = ensemble.name
    ensemble.check_fingerprint(expect_fingerprint)
    stop = threading.Event()
    server = EmbeddedServer(config_of(ensemble, port=port, http_port=http_port, log_path=log_file))

    def report(line: str) -> None:
        if not stop.is_set():  # an interrupted start is not a failure
            say(line)

    supervisor = Supervisor(server, ensemble, follow_versions=follows, report=report)
    with CONSOLE.status(f"starting tritonserver with {ensemble.path}, version {ensemble.version}"):
        server.start()

    def end(*_: object) -> None:
        stop.set()
        server.interrupt()  # in case it is starting or loading a version

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    try:
        say(f"gRPC     {server.endpoints.grpc}")
        if server.endpoints.http:
            say(f"HTTP     {server.endpoints.http}/v2/models/{ensemble.name}")
        say(f"metrics  {server.endpoints.metrics}")
        say("Press Ctrl-C to stop. Score a row with:")
        show(CONSOLE, escape(_example(ensemble, recipe, work_dir, server.endpoints.grpc)), "", 2, wrap=False)
        if follower is not None:
            threading.Thread(target=follower.run, args=(stop,), name="rankline-alias", daemon=True).start()
        supervisor.run(stop)
    finally:
        server.stop()
    say("stopped")


def _example(ensemble: "ExportedEnsemble", recipe: str, work_dir: Path, url: str) -> str:
    """Return a command that scores a row of the model's own data, or a file if no row is at hand."""
    from rankline.scoring.sample import example_row
    from rankline.serving.repository.ensemble import INPUTS

    workspace = Workspace(recipe=ensemble.name, root=work_dir)
    row = example_row(workspace, ensemble.manifest.details.get(INPUTS, ()), requests_of(recipe, ensemble.path.parent))
    return shlex.join(["rankline", "predict", recipe, "--url", url, *(row or ["--input", "FILE"])])


def _follower(
    follow: str, recipe: str | None, work_dir: Path, repository: Path
) -> "tuple[AliasFollower, ExportedEnsemble]":
    """Create an alias follower, check the alias once, and return the follower and the active version."""
    from rankline.registry.alias_follower import Alias, AliasFollower
    from rankline.runs.store import uri_of
    from rankline.serving.repository.ensemble import ExportedEnsemble

    alias = Alias.parse(follow)
    if recipe not in (None, alias.model):
        raise ConfigError(
            f"--follow specifies {alias.model!r}, but the recipe is {recipe!r}. Remove either --follow or the recipe."
        )
    path = repository / alias.model
    follower = AliasFollower(alias, path, uri_of(work_dir), say)
    if path.is_dir():
        follower.step()
    else:
        follower.follow()
    return follower, ExportedEnsemble.load(path)
