"""What both clients share, over a transport that answers as it is told to."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as pb

from serving.client import ClientConfig, ModelSchema
from serving.client.core import Core, run
from serving.client.failures import DEADLINE_EXCEEDED, UNAVAILABLE, CallError
from workflows.errors import DeadlineError, RequestError, ServerError

LOST, LATE = CallError(UNAVAILABLE, "connection refused"), CallError(DEADLINE_EXCEEDED, "too late")
UNKNOWN = CallError(UNAVAILABLE, "Request for unknown model: 'm' is not found")


class Scripted:
    """A `Transport` that gives up control only where asked to, and fails as often as its script says."""

    def __init__(self, *failures: CallError, names: Sequence[str] = ("a", "b")) -> None:
        self.failures, self.names = list(failures), list(names)
        self.num_calls, self.is_closed = 0, False

    async def describe(self, model_name: str) -> Any:
        self._next()
        tensor = {"data_type": pb.TYPE_FP32, "dims": [1]}
        return pb.ModelConfig(
            name=model_name,
            max_batch_size=2,
            input=[pb.ModelInput(name="x", **tensor)],  # type: ignore[arg-type]
            output=[pb.ModelOutput(name="y", **tensor)],  # type: ignore[arg-type]
        )

    async def model_names(self) -> list[str]:
        if not self.names:
            raise LOST
        return self.names

    def encode(self, schema: ModelSchema, tensors: Sequence[Any]) -> Any:
        return np.frombuffer(tensors[0].data, np.float32).reshape(-1, 1)

    async def infer(self, message: Any) -> Any:
        self._next()
        return 2 * message

    def decode(self, response: Any, tensor: Any) -> Any:
        return response

    async def close(self) -> None:
        self.is_closed = True

    def _next(self) -> None:
        self.num_calls += 1
        if self.failures:
            raise self.failures.pop(0)


def connected(transport: Scripted, pauses_s: list[float], **choices: Any) -> Core:
    async def sleep(duration_s: float) -> None:
        pauses_s.append(duration_s)

    core = Core("host:1", "m", ClientConfig(**choices), transport, sleep)
    run(core.connect())
    return core


def test_rows_are_sent_in_as_many_messages_as_the_model_needs_and_joined() -> None:
    transport = Scripted()
    core = connected(transport, [])
    assert run(core.infer(core.prepare({"x": [1.0, 2.0, 3.0]}))).tolist() == [2, 4, 6]
    assert transport.num_calls == 1 + 2
    assert core.schema.name == "m"


def test_the_same_core_waits_in_an_event_loop() -> None:
    async def ask() -> Any:
        core = Core("host:1", "m", ClientConfig(retries=1, backoff_s=1e-6), Scripted(LOST), asyncio.sleep)
        await core.connect()
        return await core.infer(core.prepare({"x": [1.0]}))

    assert asyncio.run(ask()).tolist() == [2]


def test_what_was_not_taken_is_sent_again_after_pauses_that_grow() -> None:
    pauses_s: list[float] = []
    core = connected(transport := Scripted(), pauses_s, retries=3, backoff_s=1.0)
    transport.failures += [LOST, LOST, LOST]
    assert run(core.infer(core.prepare({"x": [1.0]}))).tolist() == [2]
    assert [0.5 * 2**n <= pause_s <= 2**n for n, pause_s in enumerate(pauses_s)] == [True] * 3
    transport.failures += [LOST] * 4
    with pytest.raises(ServerError, match="no Triton server answers at host:1"):
        run(core.infer(core.prepare({"x": [1.0]})))
    assert len(pauses_s) == 6


def test_what_was_late_is_sent_again_only_if_asked() -> None:
    for again, num_calls in ((False, 1), (True, 2)):
        core = connected(transport := Scripted(), [], retries=1, retry_deadlines=again)
        transport.failures += [LATE, LATE]
        with pytest.raises(DeadlineError, match="did not answer within 30 s"):
            run(core.infer(core.prepare({"x": [1.0]})))
        assert transport.num_calls == 1 + num_calls


def test_an_unknown_model_is_refused_with_those_that_there_are_and_the_connection_is_closed() -> None:
    for names, message in ((["a", "b"], r"no model 'm'\. Available: \['a', 'b'\]"), ([], "no model 'm' .*try again")):
        transport = Scripted(UNKNOWN, names=names)
        with pytest.raises(RequestError, match=message):
            connected(transport, [], retries=5)
        assert (transport.num_calls, transport.is_closed) == (1, True)


def test_without_an_event_loop_nothing_can_wait_for_one() -> None:
    with pytest.raises(RuntimeError, match="waits for an event loop"):
        run(asyncio.sleep(0))
