"""The backends for models inside one real server: the same model in the format of each, asked the same."""

import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from rankline.serving.client import Client
from rankline.serving.engines.onnxruntime import ENGINE as ONNX
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.triton.config import PYTHON_RUNTIME, ModelConfig
from rankline.workflows.core.errors import RequestError
from rankline.workflows.schema.model_artifact import KIND, SAVED_MODEL, TrainedModel
from rankline.workflows.storage.artifacts import publish
from tests.factories.training.models import (
    TABLE_ROWS,
    columns,
    reasons_of_refusal,
    table_config,
    wait_for_more,
    write_model,
)

Edit = Callable[[Any], None]
NUM_REQUESTS = 16


def take_int64(message: Any) -> None:
    message.input[1].data_type = message.input[0].data_type


def give_int64(message: Any) -> None:
    message.output[0].data_type = message.input[0].data_type


def rename_input(message: Any) -> None:
    message.input[0].name = "ids"


def output_named(name: str) -> Edit:
    def edit(message: Any) -> None:
        message.output[0].name = name

    return edit


def name_the_platform(message: Any) -> None:
    message.platform = "tensorflow_savedmodel"  # without it Triton refuses the config before the backend is asked


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with a model, and what the backend says of it."""

    reason: str
    edit: Edit | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A backend, and what is its own."""

    config: ModelConfig
    file_name: str
    out_of_range: str
    faults: Mapping[str, Fault]

    def named(self, name: str, **parameters: str) -> ModelConfig:
        return replace(self.config, name=name, parameters={**self.config.parameters, **parameters})


TABLE = table_config()
WEIGHT, *LISTS = reversed(TABLE.inputs)
KINDS = {
    "tensorflow": Kind(
        config=TABLE,
        file_name="model.savedmodel",
        out_of_range="is not in [0, 5)",
        faults={
            "missing": Fault(reason="contains no SavedModel", edit=name_the_platform),
            "damaged": Fault(reason="cannot be (loaded|read)"),
            "other_type": Fault(edit=take_int64, reason=r"has 'ids__nnzs' as int32, but config\.pbtxt declares int64"),
            "other_names": Fault(
                edit=rename_input,
                reason=r"\['ids__nnzs', 'ids__values', 'weight'\], but config.pbtxt declares \['ids', 'ids__nnzs'",
            ),
            "bad_threads": Fault(parameters={"INTRA_OP_THREADS": "many"}, reason="INTRA_OP_THREADS is 'many'"),
        },
    ),
    "pytorch": Kind(
        config=replace(
            TABLE,
            backend="pytorch",
            platform="pytorch_libtorch",
            inputs=(WEIGHT, *reversed(LISTS)),  # not in the order of the arguments
            outputs=(replace(TABLE.outputs[0], name="score__0"),),
            parameters={},
        ),
        file_name="model.pt",
        out_of_range="PyTorch could not run the request: RuntimeError: index out of range",
        faults={
            "missing": Fault(reason=r"model\.pt does not exist\. Export the model again"),
            "damaged": Fault(reason=r"model\.pt (cannot be loaded|has bytes)"),
            "other_type": Fault(
                edit=lambda message: setattr(message.input[1], "data_type", message.input[0].data_type),
                reason="failed on a row of zeros with the types in config.pbtxt.*Expected tensor for argument",
            ),
            "other_names": Fault(
                edit=lambda message: setattr(message.input[1], "name", "ids"),
                reason=r"inputs \['ids__nnzs', 'ids__values', 'weight'\], but config.pbtxt declares \['ids', ",
            ),
            "bad_threads": Fault(
                parameters={"INTRA_OP_THREAD_COUNT": "many"}, reason="INTRA_OP_THREAD_COUNT is 'many'"
            ),
        },
    ),
    "onnxruntime": Kind(
        config=replace(TABLE, backend="onnxruntime", platform="onnxruntime_onnx", parameters={}),
        file_name="model.onnx",
        out_of_range="ONNX Runtime could not run the request: indices element out of data bounds, idx=5",
        faults={
            "missing": Fault(reason=r"model\.onnx does not exist\. Export the model again"),
            "damaged": Fault(reason=r"model\.onnx cannot be loaded: it (has|is) "),
            "other_type": Fault(edit=take_int64, reason="has 'ids__nnzs' as int32, but config.pbtxt declares int64"),
            "other_result": Fault(edit=give_int64, reason="has 'score' as float32, but config.pbtxt declares int64"),
            "other_names": Fault(
                edit=rename_input,
                reason=r"has the inputs \['ids__nnzs', 'ids__values', 'weight'\], but config.* declares \['ids', ",
            ),
            "bad_threads": Fault(
                parameters={"intra_op_thread_count": "many"}, reason="intra_op_thread_count is 'many'"
            ),
        },
    ),
}


@pytest.fixture(scope="module")
def torch_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adds up table[ids] over each list, times `weight`; row i of the table holds 10**i. The second result is ones."""
    import torch

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
def onnx_model(saved_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("onnx")
    details = {"run_id": "", "tracking_uri": "", "metrics": {}, "format": SAVED_MODEL}
    with publish(directory / "trained", KIND, details=details) as staging:
        shutil.copytree(saved_model, staging / SAVED_MODEL)
    ONNX.convert(TrainedModel.load(directory / "trained"), directory / "model.onnx")
    return directory / "model.onnx"


@pytest.fixture(scope="module")
def models(saved_model: Path, torch_script: Path, onnx_model: Path) -> dict[str, Path]:
    """Backend → the model of `table_config`."""
    return {"tensorflow": saved_model, "pytorch": torch_script, "onnxruntime": onnx_model}


def copy_model(model: Path, version: Path) -> None:
    (shutil.copytree if model.is_dir() else shutil.copy)(model, version / model.name)


@pytest.fixture(scope="module")
def server(models: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Serves the model of each backend, which waits up to 100 ms for requests to join.

    `one` returns PyTorch's second result, on one thread; `single` is ONNX Runtime's on one.
    """
    repository = tmp_path_factory.mktemp("repository")
    for name, kind in KINDS.items():
        copy_model(models[name], write_model(repository, kind.named(name), wait_for_more))
    one = KINDS["pytorch"].named("one", INTRA_OP_THREAD_COUNT="1")
    copy_model(models["pytorch"], write_model(repository, one, output_named("rows__1")))
    single = KINDS["onnxruntime"].named("single", intra_op_thread_count="1")
    copy_model(models["onnxruntime"], write_model(repository, single))
    with EmbeddedServer(ServerConfig(repositories=(repository,))) as running:
        yield running


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(server: EmbeddedServer, backend: str) -> Iterator[Client]:
    with Client(server.endpoints.grpc, backend) as connected:
        yield connected


def num_executions(server: EmbeddedServer, model: str) -> tuple[int, int]:
    """Requests that succeeded, and runs of the backend that it took."""
    with grpc.insecure_channel(server.endpoints.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stats = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name=model)).model_stats[0]
    return stats.inference_stats.success.count, stats.execution_count


@pytest.mark.parametrize("model", [*KINDS, "single"])
def test_inputs_are_passed_by_name(server: EmbeddedServer, model: str) -> None:
    with Client(server.endpoints.grpc, model) as connected:
        np.testing.assert_array_equal(connected.predict(columns([[0, 1], [4], []], 2.0)), [22, 20000, 0])


def test_pytorch_output_is_chosen_by_its_number(server: EmbeddedServer) -> None:
    with Client(server.endpoints.grpc, "one") as connected:
        np.testing.assert_array_equal(connected.predict(columns([[4], [3]], 5.0)), [1, 1])


def test_batched_requests_get_their_own_rows_and_a_bad_one_fails_alone(
    client: Client, server: EmbeddedServer, backend: str
) -> None:
    before = num_executions(server, backend)

    def ask(i: int) -> object:
        id_ = TABLE_ROWS if i == 3 else i % TABLE_ROWS
        try:
            return client.predict(columns([[id_] * (1 + i % 3)] * (1 + i % 4), weight=i)).tolist()
        except RequestError as error:
            return str(error)

    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        results = list(pool.map(ask, range(NUM_REQUESTS)))
    after = num_executions(server, backend)
    failure = str(results.pop(3))
    assert KINDS[backend].out_of_range in failure
    assert "\n" not in failure
    expected = [[i * (1 + i % 3) * 10 ** (i % TABLE_ROWS)] * (1 + i % 4) for i in range(NUM_REQUESTS) if i != 3]
    assert results == expected
    assert after[1] - before[1] < NUM_REQUESTS  # they were joined before the bad one was found


def test_long_list_is_not_batched_with_short_ones(client: Client) -> None:
    requests = [columns([[0] * 70_000]), *(columns([[1]], weight=i) for i in range(8))]
    with ThreadPoolExecutor(9) as pool:
        results = [result.tolist() for result in pool.map(client.predict, requests)]
    assert results == [[70_000], *([10 * i] for i in range(8))]


@pytest.mark.slow
def test_load_errors_name_their_reason(models: Mapping[str, Path], tmp_path: Path) -> None:
    """All of them are in one repository, in which the server reports each."""
    for backend, kind in KINDS.items():
        for name, fault in kind.faults.items():
            version = write_model(tmp_path, kind.named(f"{backend}_{name}", **fault.parameters), fault.edit)
            if name != "missing":
                copy_model(models[backend], version)
            if name == "damaged":
                damaged = version / kind.file_name
                file = damaged / "saved_model.pb" if damaged.is_dir() else damaged
                file.write_bytes(b"\xff not a model")
    reasons = reasons_of_refusal(tmp_path)
    assert not any("File " in reason or "At:" in reason for reason in reasons.values())
    for backend, kind in KINDS.items():
        for name, fault in kind.faults.items():
            reason = reasons[f"{backend}_{name}"]
            assert re.search(fault.reason, reason), (backend, name, reason)


@pytest.mark.parametrize("runtime", ["", PYTHON_RUNTIME], ids=["native", "python"])
def test_saved_model_that_does_more_than_compute_is_refused_unrun(runtime: str, tmp_path: Path) -> None:
    """The checks themselves are tried by `test_sanitized.py` and `test_saved_model_file.py`."""
    import tensorflow as tf

    marker = tmp_path / "it ran"

    def score(weight: Any) -> Any:
        with tf.control_dependencies([tf.io.write_file(str(marker), "x")]):
            return {"score": tf.identity(weight)}

    function = tf.function(score, input_signature=[tf.TensorSpec([None, 1], tf.float32, name="weight")])
    config = replace(KINDS["tensorflow"].config, name="writes", inputs=(WEIGHT,), runtime=runtime)
    model = write_model(tmp_path / "repository", config) / "model.savedmodel"
    tf.saved_model.save(tf.Module(), str(model), signatures={"serving_padded": function})
    (reason,) = reasons_of_refusal(tmp_path / "repository").values()
    assert re.search(r"runs the operations \[.*'WriteFile'.*\], which may have side effects", reason), reason
    assert not marker.exists()
