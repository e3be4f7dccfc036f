"""Blocking and asyncio transports for Triton's HTTP protocol, for networks that block gRPC."""

import asyncio
import os
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

import aiohttp
import gevent  # type: ignore[import-untyped]
import tritonclient.http as triton
import tritonclient.http.aio as async_triton
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor

from rankline.serving.client.config import ClientConfig, ClientTls
from rankline.serving.client.encoding import Array, WireTensor
from rankline.serving.client.errors import (
    DEADLINE_EXCEEDED,
    NOT_TRITON,
    PERMISSION_DENIED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    CallError,
    is_restricted,
)
from rankline.serving.client.schema import ModelSchema
from rankline.workflows.core.errors import in_short
from rankline.workflows.schema.tensors import Tensor

_STATUS_OF = {
    "400": "INVALID_ARGUMENT",
    "403": UNAVAILABLE,  # gRPC's status for a restricted protocol
    "404": "NOT_FOUND",
    "499": "CANCELLED",
    "503": UNAVAILABLE,
    "504": DEADLINE_EXCEEDED,
}
_STATUS_OF_PAGE = {
    "401": UNAUTHENTICATED,
    "403": PERMISSION_DENIED,
    "407": UNAUTHENTICATED,
    "502": UNAVAILABLE,
    "503": UNAVAILABLE,
    "504": DEADLINE_EXCEEDED,
}
"""Statuses of responses that are not JSON and therefore come from a proxy."""
_FAILURES = (InferenceServerException, ValueError, OSError, HTTPException, aiohttp.ClientError)

os.register_at_fork(after_in_child=gevent.reinit)  # otherwise gevent waits for threads of the parent


class HttpTransport(ABC):
    """Base class of the blocking and asyncio HTTP transports."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config

    async def describe(self, model_name: str, timeout_s: float) -> Any:
        answer = await self._call(timeout_s, "get_model_config", model_name)
        if not isinstance(answer, dict) or "max_batch_size" not in answer:
            raise CallError(NOT_TRITON, f"its response does not describe a model: {str(answer)[:50]}")
        return json_format.ParseDict(answer, model_config_pb2.ModelConfig(), ignore_unknown_fields=True)

    async def model_names(self, timeout_s: float) -> list[str]:
        index = await self._call(timeout_s, "get_model_repository_index")
        return sorted(entry["name"] for entry in index if entry.get("state") == "READY")

    def encode(self, schema: ModelSchema, tensors: Sequence[WireTensor]) -> Any:
        """Return the arguments of tritonclient's `infer`: model, inputs, version and outputs."""
        inputs = []
        for tensor in tensors:
            entry = triton.InferInput(tensor.schema.name, list(tensor.shape), tensor.schema.datatype)
            values = deserialize_bytes_tensor(tensor.data) if tensor.schema.numpy_dtype.hasobject else tensor.data
            entry.set_data_from_numpy(values.reshape(tensor.shape))
            inputs.append(entry)
        return schema.name, inputs, "", [triton.InferRequestedOutput(output.name) for output in schema.outputs]

    async def infer(self, message: Any, timeout_s: float) -> Any:
        return await self._call(timeout_s, "infer", *message)

    def decode(self, response: Any, tensor: Tensor) -> Array:
        """Return an output from tritonclient's `InferResult`, of shape [num_rows, ...].

        Raises:
            ValueError: the output is missing or has another dtype.
        """
        values: Array | None = response.as_numpy(tensor.name)
        if values is None or values.dtype != tensor.numpy_dtype:
            raise ValueError(f"the output is {'missing' if values is None else values.dtype}, expected {tensor.dtype}")
        return values

    @abstractmethod
    async def close(self) -> None:
        pass

    @abstractmethod
    async def _call(self, timeout_s: float, method: str, *arguments: Any) -> Any:
        """Call a method of tritonclient's client, passing a copy of the headers because tritonclient modifies them."""


class BlockingHttpTransport(HttpTransport):
    """A blocking HTTP transport with one connection per thread, since threads cannot share gevent's sockets."""

    def __init__(self, url: str, config: ClientConfig) -> None:
        super().__init__(config)
        self._url = url
        self._lock = threading.Lock()
        self._clients: dict[threading.Thread, Any] = {}

    async def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    async def _call(self, timeout_s: float, method: str, *arguments: Any) -> Any:
        try:
            with gevent.Timeout(timeout_s) as limit:  # covers all reads, unlike a socket's timeout
                return getattr(self._kept(), method)(*arguments, headers=dict(self._config.headers))
        except gevent.Timeout as error:
            if error is not limit:
                raise
            with self._lock:
                client = self._clients.pop(threading.current_thread())
            client.close()  # the response may still arrive on this connection
            raise CallError(DEADLINE_EXCEEDED, str(error)) from error
        except _FAILURES as error:
            raise _failed(error) from error

    def _kept(self) -> Any:
        """Return this thread's client, or create one and close the clients of finished threads."""
        thread = threading.current_thread()
        client = self._clients.get(thread)
        if client is None:
            tls = self._config.tls
            client = triton.InferenceServerClient(
                self._url,
                connection_timeout=None,
                network_timeout=None,
                ssl=tls is not None,
                ssl_options=_ssl_options(tls),
            )
            with self._lock:
                ended = [self._clients.pop(other) for other in list(self._clients) if not other.is_alive()]
                self._clients[thread] = client
            for other in ended:
                other.close()
        return client


class AsyncHttpTransport(HttpTransport):
    """An asyncio HTTP transport whose connections belong to the running event loop."""

    def __init__(self, url: str, config: ClientConfig) -> None:
        super().__init__(config)
        tls = config.tls
        context = None
        if tls is not None:
            context = ssl.create_default_context(cafile=tls.root)
            if tls.certificate is not None:
                context.load_cert_chain(tls.certificate, tls.key)
        self._client = async_triton.InferenceServerClient(
            url, conn_timeout=None, ssl=tls is not None, ssl_context=context
        )

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, timeout_s: float, method: str, *arguments: Any) -> Any:
        try:
            call = getattr(self._client, method)(*arguments, headers=dict(self._config.headers))
            return await asyncio.wait_for(call, timeout_s)
        except asyncio.TimeoutError as error:  # not yet TimeoutError on Python 3.10
            raise CallError(DEADLINE_EXCEEDED, str(error)) from error
        except _FAILURES as error:
            raise _failed(error) from error


def _failed(error: Exception) -> CallError:
    """Convert a connection failure, or an error response from the server or a proxy, to a `CallError`."""
    if isinstance(error, ValueError):  # invalid JSON or UTF-8
        return CallError(NOT_TRITON, f"status 200, {in_short(error)}")
    if not isinstance(error, InferenceServerException):
        return CallError(UNAVAILABLE, str(error))
    status, page = str(error.status()), error.debug_details()
    if page is not None:
        return CallError(_STATUS_OF_PAGE.get(status, NOT_TRITON), f"status {status}: {' '.join(page.split())[:100]}")
    details = str(error.message())
    if status in ("401", "403") and not is_restricted(details):
        return CallError(_STATUS_OF_PAGE[status], f"status {status}: {details}")
    return CallError(_STATUS_OF.get(status, f"HTTP {status}"), details)


def _ssl_options(tls: ClientTls | None) -> dict[str, str] | None:
    if tls is None:
        return None
    files = {"ca_certs": tls.root, "certfile": tls.certificate, "keyfile": tls.key}
    return {name: str(path) for name, path in files.items() if path is not None}
