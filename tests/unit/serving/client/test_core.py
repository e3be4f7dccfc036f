"""What both clients share, over a transport that answers as it is told to."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as pb

from rankline.serving.client import AsyncClient, ClientConfig, ModelSchema
from rankline.serving.client.config import MAX_PAUSE_S
from rankline.serving.client.core import Core, run
from rankline.serving.client.errors import DEADLINE_EXCEEDED, UNAVAILABLE, CallError
from rankline.workflows.core.errors import DeadlineError, RequestError, ServerBusyError, ServerError

LOST, LATE = CallError(UNAVAILABLE, "connection refused"), CallError(DEADLINE_EXCEEDED, "too late")
BUSY = CallError(UNAVAILABLE, "in ensemble 'm', [request id: 1] Exceeds maximum queue size")
RESTRICTED = CallError(UNAVAILABLE, "This protocol is restricted, expecting header 'key'")
RESET = CallError("INTERNAL", "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))")
UNKNOWN = CallError(UNAVAILABLE, "Request for unknown model: 'm' is not found")


class Scripted:
    """A `Transport` that gives up control only where asked to, and fails as often as its script says."""

    def __init__(self, *failures: CallError, names: Sequence[str] = ("a", "b")) -> None:
        self.failures, self.names = list(failures), list(names)
        self.timeouts_s, self.is_closed = list[float](), False

    async def describe(self, model_name: str, timeout_s: float) -> Any:
        self._next(timeout_s)
        tensor = {"data_type": pb.TYPE_FP32, "dims": [1]}
        return pb.ModelConfig(
            name=model_name,
            max_batch_size=2,
            input=[pb.ModelInput(name="x", **tensor)],  # type: ignore[arg-type]
            output=[pb.ModelOutput(name="y", **tensor)],  # type: ignore[arg-type]
        )

    async def model_names(self, timeout_s: float) -> list[str]:
        if not self.names:
            raise LOST
        return self.names

    def encode(self, schema: ModelSchema, tensors: Sequence[Any]) -> Any:
        return np.frombuffer(tensors[0].data, np.float32).reshape(-1, 1)

    async def infer(self, message: Any, timeout_s: float) -> Any:
        self._next(timeout_s)
        return 2 * message

    def decode(self, response: Any, tensor: Any) -> Any:
        return response

    async def close(self) -> None:
        self.is_closed = True

    @property
    def num_calls(self) -> int:
        return len(self.timeouts_s)

    def _next(self, timeout_s: float) -> None:
        self.timeouts_s.append(timeout_s)
        if self.failures:
            raise self.failures.pop(0)


def connected(transport: Scripted, pauses_s: list[float], **choices: Any) -> Core:
    """A core whose time passes in its pauses alone."""

    async def sleep(duration_s: float) -> None:
        pauses_s.append(duration_s)

    core = Core("host:1", "m", ClientConfig(**choices), transport, sleep, lambda: sum(pauses_s))
    run(core.connect())
    return core


def test_core_runs_in_an_event_loop() -> None:
    async def ask() -> Any:
        core = Core("host:1", "m", ClientConfig(backoff_s=1e-6, connect_timeout_s=9), Scripted(LOST), asyncio.sleep)
        await core.connect()
        return await core.infer(core.prepare({"x": [1.0]}))

    assert asyncio.run(ask()).tolist() == [2]


def test_lost_requests_are_retried_with_growing_pauses_until_the_deadline() -> None:
    pauses_s: list[float] = []
    core = connected(transport := Scripted(), pauses_s, timeout_s=10.0, backoff_s=0.125)
    request = core.prepare({"x": [1.0]})
    transport.failures += [LOST, UNKNOWN, RESET]  # a server that has just started has no model yet
    assert run(core.infer(request)).tolist() == [2]
    assert [0.0625 * 2**n <= pause_s <= 0.125 * 2**n for n, pause_s in enumerate(pauses_s)] == [True] * 3
    assert transport.timeouts_s[-1] == pytest.approx(10.0 - sum(pauses_s))  # what is left of the deadline
    pauses_s.clear()
    transport.failures += [LOST] * 99
    with pytest.raises(ServerError, match="no Triton server answers at host:1"):
        run(core.infer(request))
    assert 10.0 - MAX_PAUSE_S <= sum(pauses_s) < 10.0
    assert max(pauses_s) <= MAX_PAUSE_S


@pytest.mark.parametrize(
    ("failure", "choices", "error"),
    [
        (LATE, {}, DeadlineError),
        (RESTRICTED, {}, RequestError),
        (BUSY, {}, ServerBusyError),
        (LOST, {"retry_lost": False}, ServerError),
        (LOST, {"retry_lost": False, "retry_busy": True}, ServerError),
    ],
)
def test_failures_that_are_not_retried(failure: CallError, choices: Any, error: type[Exception]) -> None:
    core = connected(transport := Scripted(), [], **choices)
    transport.failures.append(failure)
    with pytest.raises(error):
        run(core.infer(core.prepare({"x": [1.0]})))
    assert transport.num_calls == 2


def test_full_queue_is_retried_with_retry_busy() -> None:
    core = connected(transport := Scripted(), [], retry_busy=True)
    transport.failures.append(BUSY)
    assert run(core.infer(core.prepare({"x": [1.0]}))).tolist() == [2]


def test_connecting_waits_for_the_server_within_its_timeout() -> None:
    assert connected(Scripted(LOST, UNKNOWN), [], connect_timeout_s=5.0).schema.name == "m"
    for connect_timeout_s in (0.0, 5.0):
        pauses_s: list[float] = []
        with pytest.raises(ServerError, match="no Triton server answers"):
            connected(transport := Scripted(*[LOST] * 99), pauses_s, connect_timeout_s=connect_timeout_s)
        assert max(connect_timeout_s - MAX_PAUSE_S, 0.0) <= sum(pauses_s) <= connect_timeout_s
        assert transport.is_closed


def test_unknown_model_is_refused_with_the_available_ones() -> None:
    for names, message in ((["a", "b"], r"no model 'm'\. Available: \['a', 'b'\]"), ([], "no model 'm' .*retry later")):
        transport = Scripted(UNKNOWN, names=names)
        with pytest.raises(RequestError, match=message):
            connected(transport, [])
        assert (transport.num_calls, transport.is_closed) == (1, True)


def test_asyncio_client_outside_its_block_is_refused() -> None:
    with pytest.raises(ServerError, match="not connected. Use it in an `async with` block"):
        AsyncClient("host:1", "m").prepare({"x": [1]})
