"""Load and unload a server's models over gRPC.

Triton's "model repository" protocol requires a key that only the process that started the server knows.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from rankline.workflows.core.errors import ServerError

KEY_HEADER = "rankline-key"
GRPC_KEY_HEADER = f"triton-grpc-protocol-{KEY_HEADER}"
_NATIVE = re.compile(r"^load failed for model '[^']+': version \d+ is at UNAVAILABLE state: [A-Z][a-z ]+: ")
"""Triton's prefix to the error message of a native backend, which ends in the status code."""
_LOADED = ("READY", "LOADING", "UNLOADING")
_ASK_TIMEOUT_S = 1.0
_SILENCE = 1 / 3  # fraction of the timeout after which a server that loads a model is pinged; see `_channel`
_MAX_MESSAGE_BYTES = 1 << 20  # of an error: tracebacks may exceed gRPC's default of 16 kB


@dataclass(frozen=True, kw_only=True)
class ModelControl:
    """A client for loading and unloading the models of one server. `timeout_s` includes the time to load a model."""

    address: str
    key: str = field(repr=False)
    timeout_s: float

    def is_ready(self, server_id: str) -> bool:
        """Whether the server has loaded all models. The id excludes an earlier server on the same port."""
        try:
            named = self._ask(lambda stub: stub.ServerMetadata, pb.ServerMetadataRequest()).name == server_id
            return named and bool(self._ask(lambda stub: stub.ServerReady, pb.ServerReadyRequest()).ready)
        except grpc.RpcError:
            return False

    def is_model_ready(self, model: str, version: int) -> bool | None:
        """Whether a version of a model is ready; None if the server does not respond."""
        request = pb.ModelReadyRequest(name=model, version=str(version))
        try:
            return bool(self._ask(lambda stub: stub.ModelReady, request).ready)
        except grpc.RpcError:
            return None

    def load(self, model: str, config: str | None = None) -> None:
        request = pb.RepositoryModelLoadRequest(model_name=model)
        if config is not None:
            request.parameters["config"].string_param = config
        self._command(lambda stub: stub.RepositoryModelLoad, request)

    def unload(self, model: str) -> None:
        """Start unloading a model. Triton completes this once all pending requests of the model are answered."""
        self._command(lambda stub: stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(model_name=model))

    def loaded(self) -> set[str]:
        """Return the names of the loaded models, including models that are being loaded or unloaded."""
        index = self._command(lambda stub: stub.RepositoryIndex, pb.RepositoryIndexRequest())
        return {model.name for model in index.models if model.state in _LOADED}

    def _command(self, method: Callable[[Any], Any], request: Any) -> Any:
        try:
            return self._ask(method, request, self.timeout_s)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise ServerError(f"the server at {self.address} is not responding ({error.details()}).") from None
            raise ServerError(_reason(error.details() or "")) from None

    def _ask(self, method: Callable[[Any], Any], request: Any, timeout_s: float = _ASK_TIMEOUT_S) -> Any:
        with self._channel() as channel:
            call = method(GRPCInferenceServiceStub(channel))
            return call(request, timeout=timeout_s, metadata=((GRPC_KEY_HEADER, self.key),))

    def _channel(self) -> Any:
        """Open a new connection for each call, so that no call waits for gRPC to reconnect."""
        silence_ms = max(1_000, round(self.timeout_s * _SILENCE * 1e3))
        options = [
            ("grpc.enable_http_proxy", 0),  # the server is on this machine
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_metadata_size", _MAX_MESSAGE_BYTES),
            ("grpc.absolute_max_metadata_size", _MAX_MESSAGE_BYTES),
            # Without pings, a call would wait for a process that was stopped (SIGSTOP) while loading a model.
            ("grpc.keepalive_time_ms", silence_ms),
            ("grpc.http2.ping_timeout_ms", silence_ms),
        ]
        return grpc.insecure_channel(self.address, options=options)


def _reason(details: str) -> str:
    text = details.partition("\n\nAt:")[0].rpartition("TritonModelException: ")[2]
    return _NATIVE.sub("", text).strip().removesuffix(";") or "the server returned no reason."
