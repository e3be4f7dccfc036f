"""Requests that no client of ours would send, straight on the wire: each is refused alone, and the server goes on."""

import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor

from rankline.serving.loadtest.identity import BACKENDS
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.triton.config import ModelConfig
from rankline.workflows.plan import ANY_WIDTH, Column, ColumnSpec, KeyIndex, TransformPlan
from rankline.workflows.schema.tensors import Tensor
from tests.factories.training.models import write_model
from tests.harness.process.waiting import wait_until

MODEL = "mixed"
MOST_ROWS = 1 << 20
MOST_TAGS = 50
_MOST_CRASHES = 5
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT

Tensors = dict[str, tuple[str, list[int], bytes]]
"""Name → type, shape and bytes on the wire."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ServerConfig:
    """Of a server with a workflow of a number, a string and a list of strings."""
    words = pa.array([b"a", "é".encode()], pa.large_binary())
    found = np.array([-1, 10, 20])
    plan = TransformPlan(
        inputs=(
            ColumnSpec(name="number", dtype="int64"),
            ColumnSpec(name="word", dtype="object"),
            ColumnSpec(name="tags", dtype="object", width=ANY_WIDTH),
        ),
        indexes=(
            KeyIndex.build("number", np.array([7, 8])),
            KeyIndex.build("word", words),
            KeyIndex.build("tags", words),
        ),
        columns=(
            Column(name="a", index=0, values=found),
            Column(name="b", index=1, values=found),
            Column(name="c", index=2, values=found, width=ANY_WIDTH),
        ),
    )
    model = ModelConfig(
        name=MODEL,
        backend="nvtabular",
        inputs=(
            Tensor(name="number", dtype="int64"),
            Tensor(name="word", dtype="object"),
            Tensor(name="tags__values", dtype="object", dims=(-1,)),
            Tensor(name="tags__nnzs", dtype="int32"),
        ),
        outputs=(
            Tensor(name="a", dtype="int64"),
            Tensor(name="b", dtype="int64"),
            Tensor(name="c__values", dtype="int64", dims=(-1,)),
            Tensor(name="c__nnzs", dtype="int32"),
        ),
        max_batch_size=MOST_ROWS,
        parameters={"MAX_LIST_LENGTH": str(MOST_TAGS)},
    )
    repository = tmp_path_factory.mktemp("repository")
    plan.save(write_model(repository, model) / "plan")
    return ServerConfig(repositories=(repository,), backends=(BACKENDS,))


@pytest.fixture(scope="module")
def stub(config: ServerConfig) -> Iterator[Any]:
    with EmbeddedServer(config) as server, stub_of(server) as stub:
        yield stub


@contextmanager
def stub_of(server: EmbeddedServer) -> Iterator[Any]:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.endpoints.grpc, options=options) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def numbers(*values: int) -> tuple[str, list[int], bytes]:
    return "INT64", [len(values), 1], np.array(values, np.int64).tobytes()


def texts(*rows: list[bytes]) -> tuple[str, list[int], bytes]:
    array = np.array(rows, object).reshape(len(rows), -1 if rows else 1)
    return "BYTES", list(array.shape), serialize_byte_tensor(array).item() if array.size else b""


def lengths(*values: int) -> tuple[str, list[int], bytes]:
    return "INT32", [len(values), 1], np.array(values, np.int32).tobytes()


def good() -> Tensors:
    return {
        "number": numbers(7, 9),
        "word": texts(["é".encode()], [b"?"]),
        "tags__values": texts([b"a", b"?"], [b"", b""]),
        "tags__nnzs": lengths(2, 0),
    }


def request(tensors: Tensors) -> Any:
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    for name, (datatype, shape, content) in tensors.items():
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(content)
    return message


def ask(stub: Any, tensors: Tensors) -> dict[str, Any]:
    answer = stub.ModelInfer(request(tensors), timeout=60)
    dtypes = {"INT64": np.int64, "INT32": np.int32}
    found = {
        tensor.name: np.frombuffer(content, dtypes[tensor.datatype]).reshape(tuple(tensor.shape)).tolist()
        for tensor, content in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    lists = zip(found.pop("c__values"), found.pop("c__nnzs"), strict=True)
    return found | {"c": [values[:length] for values, (length,) in lists]}  # what is behind is padding


GOOD = {"a": [[10], [-1]], "b": [[20], [-1]], "c": [[10, -1], []]}

BAD: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "wrong dtype": (lambda t: t.update(number=("FP64", [2, 1], bytes(16))), "inference input 'number' data-type"),
    "wrong shape": (lambda t: t.update(number=("INT64", [2, 3], bytes(48))), r"unexpected shape for input 'number'"),
    "no batch dimension": (lambda t: t.update(number=("INT64", [2], bytes(16))), r"unexpected shape for input"),
    "fewer bytes than the shape": (lambda t: t.update(number=("INT64", [2, 1], bytes(8))), "number"),
    "missing input": (lambda t: t.pop("word"), "word"),
    "extra input": (lambda t: t.update(color=numbers(1, 2)), "color"),
    "rows differ": (lambda t: t.update(number=numbers(7)), "batch size"),
    "longer than the values": (lambda t: t.update(tags__nnzs=lengths(3, 0)), "lengths of 'tags' do not fit"),
    "negative length": (lambda t: t.update(tags__nnzs=lengths(-2, 0)), "lengths of 'tags' do not fit"),
    "a list that is too long": (
        lambda t: t.update(tags__values=texts([b"a"] * 51, [b"a"] * 51)),
        "'tags__values' has lists of 51 values, expected at most 50",
    ),
    "a string longer than the request": (
        lambda t: t.update(word=("BYTES", [2, 1], struct.pack("<I", 1 << 30) + b"abc")),
        "word",
    ),
    "no rows": (  # Triton counts one at least
        lambda t: t.update(number=numbers(), word=texts(), tags__values=("BYTES", [0, 1], b""), tags__nnzs=lengths()),
        "[Ee]xpected",
    ),
    "too many rows": (
        lambda t: t.update(number=("INT64", [MOST_ROWS + 1, 1], bytes(8 * (MOST_ROWS + 1)))),
        "batch.size",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_request_is_refused_and_the_next_one_answered(stub: Any, fault: str) -> None:
    spoil, message = BAD[fault]
    tensors = good()
    spoil(tensors)
    with pytest.raises(grpc.RpcError, match=message) as failure:
        ask(stub, tensors)
    assert failure.value.code() == INVALID_ARGUMENT
    assert ask(stub, good()) == GOOD


def test_bad_requests_among_good_ones_fail_alone(stub: Any) -> None:
    def answer(i: int) -> object:
        tensors = good()
        if i % 3 == 0:
            tensors["tags__nnzs"] = lengths(9, 0)  # the padding of a wider request would do for them
        if i % 3 == 1:
            tensors |= {"tags__values": texts([b"a"] * 9, [b"a"] * 9), "tags__nnzs": lengths(9, 9)}
        try:
            return ask(stub, tensors)
        except grpc.RpcError as error:
            return error.code()

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(answer, range(96)))
    wide = GOOD | {"c": [[10] * 9] * 2}
    assert answers == [(INVALID_ARGUMENT, wide, GOOD)[i % 3] for i in range(96)]


def test_strings_that_are_no_utf8_are_unseen_ones(stub: Any) -> None:
    tensors = good() | {"word": texts([b"\xff\xfe"], [b"\xc3"])}
    assert ask(stub, tensors) == GOOD | {"b": [[-1], [-1]]}


def test_a_million_rows_are_answered(stub: Any) -> None:
    rows = 1_000_000
    words = struct.pack("<I", 1) + b"a"
    tensors: Tensors = {
        "number": ("INT64", [rows, 1], np.full(rows, 8).tobytes()),
        "word": ("BYTES", [rows, 1], words * rows),
        "tags__values": ("BYTES", [rows, 1], words * rows),
        "tags__nnzs": ("INT32", [rows, 1], np.ones(rows, np.int32).tobytes()),
    }
    answer = stub.ModelInfer(request(tensors), timeout=120)
    found = {tensor.name: content for tensor, content in zip(answer.outputs, answer.raw_output_contents, strict=True)}
    assert found["a"] == np.full(rows, 20).tobytes()
    assert found["c__values"] == np.full(rows, 10).tobytes()


def test_a_client_that_goes_away_in_the_middle_disturbs_nobody(config: ServerConfig) -> None:
    """But for a crash of Triton 24.10 itself, once in some thirty rounds (triton-inference-server/server#7840).

    The server is this test's own: it may crash as late as when the round is over.
    """
    with EmbeddedServer(config) as server, stub_of(server) as stub:
        for _ in range(_MOST_CRASHES):
            try:
                _leave_in_the_middle(server, stub)
                assert ask(stub, good()) == GOOD
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                wait_until(lambda: "SIGSEGV" in (server.exit_reason() or ""))
                server.restart(server.config.models)
                stub.ServerReady(service_pb2.ServerReadyRequest(), wait_for_ready=True)
    pytest.fail(f"the server crashed in each of {_MOST_CRASHES} rounds.")


def _leave_in_the_middle(server: EmbeddedServer, stub: Any) -> None:
    large = good() | {"tags__values": texts(*[[b"word" * 10] * MOST_TAGS] * 2), "tags__nnzs": lengths(50, 50)}
    stop = threading.Event()
    turns = threading.Semaphore(2)  # a slow machine would fall behind ever further

    def leave() -> None:
        while turns.acquire() and not stop.is_set():
            with grpc.insecure_channel(server.endpoints.grpc) as channel:
                leaving = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                calls = [leaving.ModelInfer.future(request(large)) for _ in range(8)]
                calls[0].cancel()
                time.sleep(0.001)  # what is tested are moments; the others are cut off with the channel

    thread = threading.Thread(target=leave)
    thread.start()
    try:
        for _ in range(100):
            assert ask(stub, good()) == GOOD
            turns.release()
    finally:
        stop.set()
        turns.release()
        thread.join()
