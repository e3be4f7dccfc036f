"""Servers that run as long as a call."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rankline.workspace import workspace_of

if TYPE_CHECKING:
    from serving.client import Client
    from serving.ensemble import ExportedEnsemble


@contextmanager
def client_of(recipe: str, repository: Path, url: str | None) -> Iterator["Client"]:
    """A client of the server at `url`, or of one that serves the exported ensemble as long as the block lasts."""
    from serving.client import Client
    from serving.ensemble import ExportedEnsemble
    from serving.server import EmbeddedServer
    from serving.supervise import config_of

    with ExitStack() as stack:
        if url is None:
            ensemble = ExportedEnsemble.load(workspace_of(recipe, repository=repository).ensemble)
            server = stack.enter_context(EmbeddedServer(config_of(ensemble)))
            url = server.endpoints.grpc
        yield stack.enter_context(Client(url, recipe))


@contextmanager
def server_to_measure(ensemble: "ExportedEnsemble") -> Iterator[tuple[str, "Client", Callable[[], Sequence[int]]]]:
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
