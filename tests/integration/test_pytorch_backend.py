"""The `pytorch` backend inside a real server."""

import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serving.client import Client
from serving.model_config import ModelConfig, Tensor
from serving.server import EmbeddedServer, ServerConfig
from tests.support.tiny_models import (
    MAX_BATCH_SIZE,
    TABLE_ROWS,
    columns,
    reasons_of_refusal,
    wait_for_more,
    write_model,
)
from workflows.errors import RequestError


def table_config(name: str, **parameters: str) -> ModelConfig:
    """The model of `torch_script`."""
    return ModelConfig(
        name=name,
        backend="pytorch",
        platform="pytorch_libtorch",
        inputs=(
            Tensor(name="weight", dtype="float32"),  # not in the order of the arguments
            Tensor(name="ids__values", dtype="int64", dims=(-1,)),
            Tensor(name="ids__nnzs", dtype="int32"),
        ),
        outputs=(Tensor(name="score__0", dtype="float32"),),
        max_batch_size=MAX_BATCH_SIZE,
        parameters=parameters,
    )


@pytest.fixture(scope="module")
def torch_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adds up table[ids] over each list, times `weight`; row i of the table holds 10**i. The second result is ones."""

    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(10.0 ** torch.arange(TABLE_ROWS)[:, None])

        def forward(self, ids__values, ids__nnzs, weight):  # type: ignore[no-untyped-def]
            inside = (torch.ones_like(ids__values).cumsum(1) <= ids__nnzs).to(torch.float32)
            rows = torch.nn.functional.embedding(ids__values, self.table)[:, :, 0]
            return (rows * inside).sum(dim=1, keepdim=True) * weight, torch.ones_like(weight)

    example = (torch.zeros((2, 3), dtype=torch.int64), torch.ones((2, 1), dtype=torch.int32), torch.ones((2, 1)))
    path = tmp_path_factory.mktemp("torch_script") / "model.pt"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated")
        torch.jit.trace(Table(), example).save(str(path))
    return path


@pytest.fixture(scope="module")
def server(torch_script: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Serves `table`, which waits up to 100 ms for requests to join, and `one`, which returns the second result."""
    repository = tmp_path_factory.mktemp("repository")
    shutil.copy(torch_script, write_model(repository, table_config("table"), wait_for_more))
    one = table_config("one", INTRA_OP_THREAD_COUNT="1", INTER_OP_THREAD_COUNT="1")
    shutil.copy(torch_script, write_model(repository, one, _second_output))
    with EmbeddedServer(ServerConfig(repositories=(repository,))) as running:
        yield running


def test_runs_the_model_with_its_arguments_by_name(client: Client) -> None:
    np.testing.assert_array_equal(client.predict(columns([[0, 1], [4], []], 2.0)), [22, 20000, 0])


def test_an_outputs_name_says_which_result_it_is(server: EmbeddedServer) -> None:
    with Client(server.endpoints.grpc, "one") as connected:
        np.testing.assert_array_equal(connected.predict(columns([[4], [3]], 5.0)), [1, 1])


def test_joined_requests_get_their_own_rows_and_a_bad_one_fails_alone(client: Client) -> None:
    def ask(i: int) -> object:
        id_ = TABLE_ROWS if i == 3 else i % TABLE_ROWS
        try:
            return client.predict(columns([[id_] * (1 + i % 3)] * (1 + i % 4), weight=i)).tolist()
        except RequestError as error:
            return str(error)

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(ask, range(16)))
    assert "PyTorch could not run the request: RuntimeError: index out of range" in str(results.pop(3))
    expected = [[i * (1 + i % 3) * 10 ** (i % TABLE_ROWS)] * (1 + i % 4) for i in range(16) if i != 3]
    assert results == expected


def _second_output(message: Any) -> None:
    message.output[0].name = "rows__1"


def _third_output(message: Any) -> None:
    message.output[0].name = "score__2"


def _take_float(message: Any) -> None:
    message.input[1].data_type = message.input[0].data_type


def _give_int64(message: Any) -> None:
    message.output[0].data_type = message.input[1].data_type


def _rename(message: Any) -> None:
    message.input[1].name = "ids"


FAULTS: dict[str, tuple[Callable[[Any], None] | None, str]] = {
    "missing": (None, r"model\.pt does not exist\. Export the model again"),
    "damaged": (None, r"model\.pt cannot be loaded: "),
    "other_type": (_take_float, "cannot run a row of zeros of the types in config.pbtxt.*Expected tensor for argument"),
    "other_result": (_give_int64, "returns 'score__0' as float32, config.pbtxt says int64"),
    "other_names": (_rename, r"takes \['ids__nnzs', 'ids__values', 'weight'\], config.pbtxt says \['ids', 'ids__nnzs'"),
    "one_too_many": (_third_output, "it returns 2 tensors, none at place 2"),
    "bad_threads": (None, "INTRA_OP_THREAD_COUNT is 'many'"),
}


def test_says_why_a_model_cannot_be_loaded(torch_script: Path, tmp_path: Path) -> None:
    for name, (edit, _) in FAULTS.items():
        parameters = {"INTRA_OP_THREAD_COUNT": "many"} if name == "bad_threads" else {}
        version = write_model(tmp_path, table_config(name, **parameters), edit)
        if name != "missing":
            shutil.copy(torch_script, version)
    (tmp_path / "damaged" / "1" / "model.pt").write_bytes(b"PK\x03\x04 not a model")
    reasons = reasons_of_refusal(tmp_path)
    assert not any("File " in reason or "At:" in reason for reason in reasons.values())
    for name, (_, message) in FAULTS.items():
        assert re.search(message, reasons[name]), (name, reasons[name])
