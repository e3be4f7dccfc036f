"""The scoring backend of a command: a running server, a server started for it, or this process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rankline.terminal.console import note
from rankline.workflows.core.errors import ConfigError

if TYPE_CHECKING:
    from rankline.serving.client import Client


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server.

    Attributes:
        url: HOST:PORT of its gRPC endpoint.
        process_ids: returns the ids of the processes of the server and its models; empty if it was not started here.
        identity: name of a model that returns its input, for measuring the client's overhead; None if there is none.
    """

    url: str
    process_ids: Callable[[], Sequence[int]] = tuple
    identity: str | None = None


@contextmanager
def client_for(repository: Path, url: str | None, tls_root: Path | None = None) -> Iterator["Client"]:
    """Yield a client for the server at `url`, or a client that scores in this process if `url` is None."""
    from rankline.serving.client import Client, ClientConfig, ClientTls

    if url is not None:
        config = ClientConfig(tls=None if tls_root is None else ClientTls(root=tls_root))
        with Client(url, repository.name, config) as client:
            yield client
        return
    if tls_root is not None:
        raise ConfigError("--tls-root requires --url. Pass --url HOST:PORT as well.")
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.serving.server.in_process import open_ensemble

    ensemble = ExportedEnsemble.load(repository)
    note(f"scoring in this process: {ensemble.path}, version {ensemble.version}")
    with open_ensemble(ensemble) as client:
        yield client


@contextmanager
def server_for(
    repository: Path, url: str | None = None, *, log_path: Path | None = None, with_identity: bool = False
) -> Iterator[Server]:
    """Yield the server at `url`. If `url` is None, serve an exported ensemble until the `with` block ends."""
    if url is not None:
        yield Server(url=url)
        return
    from rankline.serving.repository.ensemble import ExportedEnsemble
    from rankline.serving.server.embedded import EmbeddedServer
    from rankline.serving.server.supervisor import config_of

    with ExitStack() as stack:
        config = config_of(ExportedEnsemble.load(repository), log_path=log_path)
        identity = None
        if with_identity:
            from rankline.serving.loadtest.identity import write_fastest_identity

            directory = Path(stack.enter_context(TemporaryDirectory(prefix="rankline-identity-")))
            repository, backends = directory / "models", directory / "backends"
            identity = write_fastest_identity(repository, backends)
            config = replace(
                config,
                repositories=(*config.repositories, repository),
                models=(*config.models, identity),
                backends=(*config.backends, backends),
            )
        server = stack.enter_context(EmbeddedServer(config))
        yield Server(url=server.endpoints.grpc, process_ids=server.process_ids, identity=identity)
