"""Blocking and asyncio transport for Triton's gRPC protocol, using tritonclient's stubs."""

import os
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from rankline.serving.client.config import ClientConfig, proxy_options
from rankline.serving.client.encoding import Array, WireTensor
from rankline.serving.client.errors import CLOSED, CallError
from rankline.serving.client.request_builder import decode
from rankline.serving.client.schema import ModelSchema
from rankline.workflows.core.errors import ServerError
from rankline.workflows.schema.tensors import Tensor

_RECONNECT_MS = (100, 250)
_CONNECT_TIMEOUT_MS = 5_000
_SILENCE = 1 / 3  # fraction of the deadline; leaves a third of it for another server
_SEVERAL = ("dns:", "ipv4:", "ipv6:")  # gRPC's address schemes that may name several servers


_waiting: set[int] = set()
"""Threads that wait for a response."""
_open: "WeakSet[GrpcTransport]" = WeakSet()
"""Open asynchronous transports, for which gRPC runs its own threads."""
_is_cut_off = False
"""Whether this process was forked during calls: gRPC then hangs or aborts, and ignores timeouts."""


def _after_fork() -> None:
    global _is_cut_off
    _is_cut_off |= bool(_waiting) or len(_open) > 0
    _waiting.clear()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


class GrpcTransport:
    """A `Transport` over gRPC. Blocking calls are thread-safe; canceling an asynchronous call cancels its request.

    Raises:
        ServerError: the process was forked while its parent used gRPC.
    """

    def __init__(self, url: str, config: ClientConfig, *, is_async: bool) -> None:
        if _is_cut_off:
            raise ServerError(
                "gRPC cannot be used in this process, which was forked while its parent was waiting for a response. "
                "Start processes with multiprocessing's 'spawn' method, or use transport 'http'."
            )
        self._is_async = is_async
        if is_async:
            _open.add(self)
        self._options: dict[str, Any] = {}
        if config.headers:
            self._options["metadata"] = tuple((name.lower(), value) for name, value in config.headers.items())
        channels = grpc.aio if is_async else grpc
        options = _channel_options(url, config)
        if (tls := config.tls) is None:
            self._channel = channels.insecure_channel(url, options=options)
        else:
            files = [file and file.read_bytes() for file in (tls.root, tls.key, tls.certificate)]
            self._channel = channels.secure_channel(url, grpc.ssl_channel_credentials(*files), options=options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def encode(self, schema: ModelSchema, tensors: Sequence[WireTensor]) -> Any:
        """Encode tensors as a `ModelInferRequest`."""
        message = service_pb2.ModelInferRequest(model_name=schema.name)
        for tensor in tensors:
            message.inputs.add(name=tensor.schema.name, datatype=tensor.schema.datatype, shape=tensor.shape)
            message.raw_input_contents.append(tensor.data.tobytes())
        for output in schema.outputs:
            message.outputs.add(name=output.name)
        return message

    def decode(self, response: Any, tensor: Tensor) -> Array:
        place = place_of(response, tensor.name)
        return decode(response.raw_output_contents[place], response.outputs[place].shape, tensor)

    async def describe(self, model_name: str, timeout_s: float) -> Any:
        message = service_pb2.ModelConfigRequest(name=model_name)
        return (await self._call(self._stub.ModelConfig, message, timeout_s)).config

    async def model_names(self, timeout_s: float) -> list[str]:
        index = await self._call(self._stub.RepositoryIndex, service_pb2.RepositoryIndexRequest(ready=True), timeout_s)
        return sorted(model.name for model in index.models)

    async def infer(self, message: Any, timeout_s: float) -> Any:
        return await self._call(self._stub.ModelInfer, message, timeout_s)

    async def close(self) -> None:
        _open.discard(self)
        closing = self._channel.close()
        if self._is_async:
            await closing

    async def _call(self, method: Any, message: Any, timeout_s: float) -> Any:
        thread = threading.get_ident()
        try:
            if self._is_async:
                return await method(message, timeout=timeout_s, **self._options)
            _waiting.add(thread)
            return method(message, timeout=timeout_s, **self._options)
        except grpc.RpcError as error:
            raise CallError(error.code().name, error.details() or "") from error
        except (ValueError, grpc.aio.UsageError) as error:  # closed channel, blocking or not
            raise CallError(CLOSED, str(error)) from error
        finally:
            _waiting.discard(thread)


def _channel_options(url: str, config: ClientConfig) -> list[tuple[str, int | str]]:
    first_ms, longest_ms = _RECONNECT_MS
    silence_ms = round(config.timeout_s * _SILENCE * 1e3)
    options: list[tuple[str, int | str]] = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        # By default gRPC waits a second before it reconnects, and retries in the meantime would fail immediately.
        ("grpc.initial_reconnect_backoff_ms", first_ms),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),  # maximum duration of one attempt, despite its name
        ("grpc.max_reconnect_backoff_ms", longest_ms),
        # A machine that vanishes closes no connection. After this silence gRPC pings it, and gives up without a reply.
        # At most three pings are sent per waiting request, since a server treats more as an attack.
        ("grpc.keepalive_time_ms", silence_ms),
        ("grpc.http2.ping_timeout_ms", silence_ms),  # gRPC ignores keepalive_timeout_ms
    ]
    if url.startswith(_SEVERAL):
        options.append(("grpc.lb_policy_name", "round_robin"))  # otherwise all requests go to the first
    return [*options, *proxy_options(url)]


def place_of(response: Any, name: str) -> int:
    """Return the index of an output in a `ModelInferResponse`, ignoring the name if there is only one output."""
    names = [output.name for output in response.outputs]
    return names.index(name) if len(names) > 1 else 0
