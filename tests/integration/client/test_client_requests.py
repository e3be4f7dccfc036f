"""The client against a real server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rankline.serving.client import Client
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.workflows.core.errors import RequestError, ServerError
from tests.factories.training.models import MAX_BATCH_SIZE, identity_config, write_model

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def client(server: EmbeddedServer) -> Iterator[Client]:
    with Client(server.endpoints.grpc, "identity") as connected:
        yield connected


def test_schema_comes_from_the_server(server: EmbeddedServer) -> None:
    with Client(server.endpoints.grpc, "table") as client:
        schema = client.schema
    assert [(t.name, t.datatype, t.dims) for t in schema.inputs] == [
        ("ids__values", "INT64", (-1,)),
        ("ids__nnzs", "INT32", (1,)),
        ("weight", "FP32", (1,)),
    ]
    assert [t.name for t in schema.outputs] == ["score"]
    assert [column.name for column in schema.columns] == ["ids", "weight"]
    assert schema.max_batch_size == MAX_BATCH_SIZE


@pytest.mark.parametrize("num_rows", [0, 1, MAX_BATCH_SIZE, MAX_BATCH_SIZE + 1, 5 * MAX_BATCH_SIZE])
def test_any_number_of_rows(client: Client, num_rows: int) -> None:
    rows = np.arange(num_rows) * 3 - 7
    scores = client.predict({"x": rows})
    np.testing.assert_array_equal(scores, rows)
    assert scores.dtype == np.int64


def test_a_proxy_is_not_asked_for_what_stays_on_this_machine(server: EmbeddedServer) -> None:
    code = (
        "import sys; from rankline.serving.client import Client\n"
        "with Client(sys.argv[1], 'identity') as client: print(*client.predict({'x': [7, 8]}))"
    )
    nobody = "http://127.0.0.1:9"
    environment = {**os.environ, "http_proxy": nobody, "grpc_proxy": nobody, "no_proxy": "", "no_grpc_proxy": ""}
    for host in ("127.0.0.1", "localhost"):
        url = f"{host}:{server.endpoints.grpc.rpartition(':')[2]}"
        command = [sys.executable, "-c", code, url]
        result = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        assert (result.stdout, result.returncode) == ("7 8\n", 0), result.stderr


def test_an_answer_with_other_rows_than_the_request_is_refused(tmp_path: Path) -> None:
    backend = tmp_path / "backends" / "identity"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(
        "import numpy as np, triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        rows = (pb_utils.get_input_tensor_by_name(r, 'x').as_numpy() for r in requests)\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', np.tile(x, (1, 2)))]) for x in rows]\n"
    )
    write_model(tmp_path / "repository", identity_config())
    config = ServerConfig(repositories=(tmp_path / "repository",), backends=(tmp_path / "backends",))
    with (
        EmbeddedServer(config) as server,
        Client(server.endpoints.grpc, "identity") as client,
        pytest.raises(ServerError, match="answer of model 'identity' does not fit its output 'y': 6 rows for 3"),
    ):
        client.predict({"x": [1, 2, 3]})


def test_unknown_model_lists_the_available_ones(server: EmbeddedServer) -> None:
    with pytest.raises(RequestError, match=r"no model 'movielens'\. Available: \['identity', 'table'\]"):
        Client(server.endpoints.grpc, "movielens")
