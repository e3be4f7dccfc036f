"""The `onnxruntime` backend inside a real server."""

import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.client import Client
from serving.model_config import ModelConfig
from serving.onnx import convert
from serving.server import EmbeddedServer, ServerConfig
from tests.support.tiny_models import TABLE_ROWS, columns, reasons_of_refusal, table_config, wait_for_more, write_model
from workflows.artifacts import publish
from workflows.errors import RequestError
from workflows.trained import KIND, ONNX, TENSORFLOW, TrainedModel


def onnx_config(name: str, **parameters: str) -> ModelConfig:
    """The model of `table_config`, converted."""
    return replace(table_config(name), backend=ONNX.name, platform=ONNX.platform, parameters=parameters)


@pytest.fixture(scope="module")
def onnx_model(saved_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("onnx")
    with publish(directory / "trained", KIND, details={"run_id": "", "tracking_uri": "", "metrics": {}}) as staging:
        shutil.copytree(saved_model, staging / TENSORFLOW.file_name)
    convert(TrainedModel.load(directory / "trained"), directory / ONNX.file_name)
    return directory / ONNX.file_name


@pytest.fixture(scope="module")
def server(onnx_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Serves `table`, which waits up to 100 ms for requests to join, and `parallel`, with threads of its own."""
    repository = tmp_path_factory.mktemp("repository")
    shutil.copy(onnx_model, write_model(repository, onnx_config("table"), wait_for_more))
    threads = {"intra_op_thread_count": "1", "inter_op_thread_count": "2", "execution_mode": "1"}
    shutil.copy(onnx_model, write_model(repository, onnx_config("parallel", **threads)))
    with EmbeddedServer(ServerConfig(repositories=(repository,))) as running:
        yield running


@pytest.mark.parametrize("model", ["table", "parallel"])
def test_runs_the_converted_signature(server: EmbeddedServer, model: str) -> None:
    with Client(server.endpoints.grpc, model) as connected:
        np.testing.assert_array_equal(connected.predict(columns([[0, 1], [4], []], 2.0)), [22, 20000, 0])


def test_joined_requests_get_their_own_rows_and_a_bad_one_fails_alone(client: Client) -> None:
    def ask(i: int) -> object:
        id_ = TABLE_ROWS if i == 3 else i % TABLE_ROWS
        try:
            return client.predict(columns([[id_] * (1 + i % 3)] * (1 + i % 4), weight=i)).tolist()
        except RequestError as error:
            return str(error)

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(ask, range(16)))
    failure = str(results.pop(3))
    assert "ONNX Runtime could not run the request: indices element out of data bounds, idx=5" in failure
    assert "\n" not in failure
    expected = [[i * (1 + i % 3) * 10 ** (i % TABLE_ROWS)] * (1 + i % 4) for i in range(16) if i != 3]
    assert results == expected


def _take_int64(message: Any) -> None:
    message.input[1].data_type = message.input[0].data_type


def _give_int64(message: Any) -> None:
    message.output[0].data_type = message.input[0].data_type


def _rename_input(message: Any) -> None:
    message.input[0].name = "ids"


def _rename_output(message: Any) -> None:
    message.output[0].name = "rating"


FAULTS: dict[str, tuple[Callable[[Any], None] | None, str]] = {
    "missing": (None, r"model\.onnx does not exist\. Export the model again"),
    "damaged": (None, r"model\.onnx cannot be loaded: Load model from .* failed:Protobuf parsing failed"),
    "other_type": (_take_int64, "has 'ids__nnzs' as int32, config.pbtxt says int64"),
    "other_result": (_give_int64, "has 'score' as float32, config.pbtxt says int64"),
    "other_names": (_rename_input, r"has the inputs \['ids__nnzs', 'ids__values', 'weight'\], config.* says \['ids', "),
    "other_output": (_rename_output, r"has the outputs \['score'\], config.pbtxt says \['rating'\]"),
    "bad_threads": (None, "intra_op_thread_count is 'many'"),
}


def test_says_why_a_model_cannot_be_loaded(onnx_model: Path, tmp_path: Path) -> None:
    for name, (edit, _) in FAULTS.items():
        parameters = {"intra_op_thread_count": "many"} if name == "bad_threads" else {}
        version = write_model(tmp_path, onnx_config(name, **parameters), edit)
        if name != "missing":
            shutil.copy(onnx_model, version)
    (tmp_path / "damaged" / "1" / "model.onnx").write_bytes(b"\xff not a model")
    reasons = reasons_of_refusal(tmp_path)
    assert not any("File " in reason or "At:" in reason for reason in reasons.values())
    for name, (_, message) in FAULTS.items():
        assert re.search(message, reasons[name]), (name, reasons[name])
