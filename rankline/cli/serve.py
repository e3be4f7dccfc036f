"""The verb `serve`."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from rankline.cli.arguments import RecipeName, Repository
from rankline.display import CONSOLE, say
from rankline.workspace import REPOSITORY, workspace_of
from workflows.errors import ConfigError

GRPC_PORT = 8001  # Triton's own


def serve_command(
    recipe: RecipeName = "movielens",
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
            help='Refuse any other version: "fingerprint" in the manifest.json of who exported it. Not with --watch.',
        ),
    ] = None,
    log_file: Annotated[
        Path | None,
        typer.Option(help="Write the server's log here; with replicas, -1, -2, … and -balancer go before the suffix."),
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
        raise ConfigError("--port is 1, and HTTP uses the port below it. Give 0 for free ports, or 2 and above.")
    ensemble = ExportedEnsemble.load(workspace_of(recipe, repository=repository).ensemble)
    if watch and expect_fingerprint:
        raise ConfigError("--expect-fingerprint names one version, and --watch takes others. Leave out one of the two.")
    ensemble.check_fingerprint(expect_fingerprint)
    ports = {"grpc_port": port, "http_port": port and port - 1, "metrics_port": port and port + 1}
    server: EmbeddedServer | ReplicaSet
    if replicas == 1:
        server = EmbeddedServer(config_of(ensemble, **ports, log_path=log_file))
        run = Supervisor(server, ensemble, follow_versions=watch, report=say).run
    else:
        config = ReplicasConfig(num_replicas=replicas, balancer=BalancerConfig(**ports), log_path=log_file)
        server = ReplicaSet(ensemble, config, follow_versions=watch, report=say)
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
        say(f"Ctrl-C stops it. Try it with: rankline predict --recipe {recipe} --url {server.endpoints.grpc} …")
        run(stop)
    finally:
        server.stop()
    say("stopped")
