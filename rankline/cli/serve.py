"""The verb `serve`."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankline.cli.arguments import Repository, WorkDir
from rankline.cli.completion import recipes
from rankline.display import CONSOLE, say
from rankline.workspace import REPOSITORY, WORK_DIR, exported_workspace
from serving.ports import GRPC_PORT
from workflows.errors import ConfigError

if TYPE_CHECKING:
    from rankline.tracking.follow import AliasFollower
    from serving.ensemble import ExportedEnsemble
    from serving.replicas import ReplicaSet
    from serving.server import EmbeddedServer


def serve_command(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="[RECIPE]", help="movielens, unless --follow names another.", autocompletion=recipes),
    ] = None,
    *,
    repository: Repository = REPOSITORY,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65534, help="gRPC port; HTTP uses the port below it, metrics the one above. 0 picks free ports."
        ),
    ] = GRPC_PORT,
    replicas: Annotated[
        int, typer.Option(min=1, help="Number of servers behind one address; more than one needs nginx.")
    ] = 1,
    watch: Annotated[
        bool, typer.Option("--watch", help="Switch to what `rankline export` and `rankline rollback` make active.")
    ] = False,
    expect_fingerprint: Annotated[
        str | None,
        typer.Option(
            metavar="SHA256",
            help='Refuse any other version: "fingerprint" in the manifest.json of who exported it. Not with --watch '
            "or --follow.",
        ),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(
            "--follow",
            metavar="models:/NAME@ALIAS",
            help="Serve what an alias in MLflow's model registry names, and switch when it is moved; versions are "
            "fetched into the repository.",
        ),
    ] = None,
    work_dir: WorkDir = WORK_DIR,
    log_file: Annotated[
        Path | None,
        typer.Option(help="Write the server's log here; with replicas, -1, -2, … and -balancer go before the suffix."),
    ] = None,
) -> None:
    """Run a real Triton on this machine, on loopback, until Ctrl-C.

    **Examples**

    rankline serve

    rankline serve movielens --port 0 --watch

    rankline serve --follow models:/movielens@champion

    rankline serve movielens --replicas 2 --log-file triton.log
    """
    from serving.ensemble import ExportedEnsemble

    if port == 1:
        raise ConfigError("--port is 1, and HTTP uses the port below it. Give 0 for free ports, or 2 and above.")
    follows = watch or follow is not None
    if follows and expect_fingerprint:
        raise ConfigError(
            "--expect-fingerprint names one version, and --watch and --follow take others. Leave one of them out."
        )
    follower = None
    if follow is None:
        recipe = recipe or "movielens"
        ensemble = ExportedEnsemble.load(exported_workspace(recipe, repository=repository).ensemble)
    else:
        follower, ensemble = _follower(follow, recipe, work_dir, repository)
        recipe = ensemble.name
    ensemble.check_fingerprint(expect_fingerprint)
    server, run = _server(ensemble, port, replicas, log_file, follows=follows)
    with CONSOLE.status(f"starting tritonserver with {ensemble.path}, version {ensemble.version}"):
        server.start()
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        say(f"gRPC     {server.endpoints.grpc}")
        say(f"HTTP     {server.endpoints.http}/v2/models/{ensemble.name}")
        say(f"metrics  {' '.join(server.metrics_urls)}")
        say(f"Ctrl-C stops it. Try it with: rankline predict {recipe} --url {server.endpoints.grpc} …")
        if follower is not None:
            threading.Thread(target=follower.run, args=(stop,), name="rankline-alias", daemon=True).start()
        run(stop)
    finally:
        server.stop()
    say("stopped")


def _server(
    ensemble: "ExportedEnsemble", port: int, num_replicas: int, log_path: Path | None, *, follows: bool
) -> "tuple[EmbeddedServer | ReplicaSet, Callable[[threading.Event], None]]":
    """One server, or several behind one address, and what looks after it until an event is set."""
    from serving.balancer import BalancerConfig
    from serving.replicas import ReplicasConfig, ReplicaSet
    from serving.server import EmbeddedServer
    from serving.supervise import Supervisor, config_of

    ports = {"grpc_port": port, "http_port": port and port - 1, "metrics_port": port and port + 1}
    if num_replicas == 1:
        server = EmbeddedServer(config_of(ensemble, **ports, log_path=log_path))
        return server, Supervisor(server, ensemble, follow_versions=follows, report=say).run
    config = ReplicasConfig(num_replicas=num_replicas, balancer=BalancerConfig(**ports), log_path=log_path)
    several = ReplicaSet(ensemble, config, follow_versions=follows, report=say)
    return several, several.run


def _follower(
    follow: str, recipe: str | None, work_dir: Path, repository: Path
) -> "tuple[AliasFollower, ExportedEnsemble]":
    """What follows the alias, after its first look, and the active version; an old one if the store does not answer."""
    from rankline.tracking.follow import Alias, AliasFollower
    from rankline.tracking.store import uri_of
    from serving.ensemble import ExportedEnsemble

    alias = Alias.parse(follow)
    if recipe not in (None, alias.model):
        raise ConfigError(f"--follow names {alias.model!r}, and the recipe is {recipe!r}. Leave one of them out.")
    path = repository / alias.model
    follower = AliasFollower(alias, path, uri_of(work_dir), say)
    if path.is_dir():
        follower.step()
    else:
        follower.follow()
    return follower, ExportedEnsemble.load(path)
