"""A real server with tiny models, started once for all integration tests that need no exported ensemble."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankline.serving.client import Client
from rankline.serving.loadtest.identity import BACKENDS
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from tests.factories.training.models import TABLE_ROWS, identity_config, table_config, wait_for_more, write_model


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SavedModel behind `table_config`."""
    import tensorflow as tf

    class Table(tf.Module):
        def __init__(self) -> None:
            self.table = tf.Variable([10.0**i for i in range(TABLE_ROWS)])

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, None], tf.int64, name="ids__values"),
                tf.TensorSpec([None, 1], tf.int32, name="ids__nnzs"),
                tf.TensorSpec([None, 1], tf.float32, name="weight"),
            ]
        )
        def score(self, ids__values, ids__nnzs, weight):  # type: ignore[no-untyped-def]
            mask = tf.sequence_mask(ids__nnzs[:, 0], tf.shape(ids__values)[1], tf.float32)
            summed = tf.reduce_sum(tf.gather(self.table, ids__values) * mask, axis=1, keepdims=True)
            return {"score": summed * weight}

    path = tmp_path_factory.mktemp("saved_model") / "model.savedmodel"
    table = Table()
    tf.saved_model.save(table, str(path), signatures={"serving_padded": table.score})
    return path


@pytest.fixture(scope="session")
def server(saved_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Serves `identity`, and `table`, which waits up to 100 ms for requests to join."""
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, identity_config())
    version = write_model(repository, table_config(), wait_for_more)
    (version / "model.savedmodel").symlink_to(saved_model)
    with EmbeddedServer(ServerConfig(repositories=(repository,), backends=(BACKENDS,))) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: EmbeddedServer) -> Iterator[Client]:
    """Asks the model `table` of the module's server."""
    with Client(server.endpoints.grpc, "table") as connected:
        yield connected
