"""The transport `grpcio`, which the Python client also uses. It needs about ten times as much CPU time as `http2`."""

import queue
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped]

from rankline.serving.loadtest.generator.transport import CONNECT_TIMEOUT_S, OK, Answer
from rankline.workflows.core.errors import ServerError

_LIVE = "/inference.GRPCInferenceService/ServerLive"
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


class GrpcioConnection:
    """A `Transport` that makes unary calls over a grpcio channel. The threads of grpcio put responses into a queue."""

    capacity = 1 << 31

    def __init__(self, url: str, path: str) -> None:
        self._channel = grpc.insecure_channel(url, options=_OPTIONS)
        self._method = self._channel.unary_unary(path)
        self._calls: dict[int, Any] = {}
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._live = self._ask_live()
        self._live.exception()
        if self.failure:
            self._channel.close()
            raise ServerError(f"no server answers at {url}. Start one with `rankline serve`.")

    @property
    def failure(self) -> str:
        """The reason why the server is considered unavailable, or an empty string while it responds."""
        if self._live.done() and self._live.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return "the server closed the connection and refuses new ones"
        return ""

    def send(self, key: int, message: bytes) -> None:
        """Start a call. One of grpcio's threads puts its response into the queue."""
        self._calls[key] = call = self._method.future(message)
        call.add_done_callback(partial(self._done, key))

    def flush(self) -> None:
        pass

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Wait for a response, and return all responses that are available. If one is UNAVAILABLE, check whether the
        server is alive.
        """
        answers = []
        with suppress(queue.Empty):
            answers.append(self._answers.get(timeout=max(timeout_s, 1e-6)))
            while True:
                answers.append(self._answers.get_nowait())
        if self._live.done() and not self.failure and any(answer.status == "UNAVAILABLE" for answer in answers):
            self._live = self._ask_live()
        return [answer for answer in answers if self._calls.pop(answer.key, None) is not None]

    def cancel(self, key: int) -> None:
        """Cancel a call; `poll` discards a response that has already arrived."""
        self._calls.pop(key).cancel()

    def close(self) -> None:
        self._channel.close()

    def _ask_live(self) -> Any:
        # A separate call is needed: a full queue also returns UNAVAILABLE, and a channel with a state subscription
        # cannot be closed safely, because grpcio's watching thread may fail (grpc/grpc#18995).
        return self._channel.unary_unary(_LIVE).future(b"", timeout=CONNECT_TIMEOUT_S)

    def _done(self, key: int, call: Any) -> None:
        at_ns = time.perf_counter_ns()
        if call.cancelled():
            return
        error = call.exception()
        if error is None:
            self._answers.put(Answer(key, at_ns, OK, call.result()))
        else:
            self._answers.put(Answer(key, at_ns, call.code().name, (call.details() or "").encode()))
