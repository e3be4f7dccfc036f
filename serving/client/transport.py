"""What carries requests to a server and answers back, and the choice of it.

A transport is written once for both clients, in coroutines. Those of a blocking one never give up control, so `Client`
runs them to their end at once (`core.run`); those of the others wait in the event loop.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from serving.client.config import HTTP, ClientConfig
from serving.client.schema import ModelSchema
from serving.client.tensors import Array, WireTensor
from workflows.extras import require
from workflows.tensors import Tensor


class Transport(Protocol):
    """A connection. Calls raise `CallError`, after `timeout_s` at the latest; none is repeated."""

    async def describe(self, model_name: str, timeout_s: float) -> Any:
        """The model's `inference.ModelConfig`."""

    async def model_names(self, timeout_s: float) -> list[str]:
        """Models that are ready."""

    def encode(self, schema: ModelSchema, tensors: Sequence[WireTensor]) -> Any:
        """A message that asks for all outputs."""

    async def infer(self, message: Any, timeout_s: float) -> Any:
        """Send a message; returns what `decode` takes."""

    def decode(self, response: Any, tensor: Tensor) -> Array:
        """The output, [num_rows, ...]. Raises ValueError, IndexError or struct.error where it does not fit."""

    async def close(self) -> None:
        pass


def connect(url: str, config: ClientConfig, *, is_async: bool) -> Transport:
    """Make a connection; nothing is sent yet.

    Args:
        url: of the server.
        config: which transport, and its choices.
        is_async: for the running event loop; else calls block.

    Raises:
        ConfigError: `url` asks for HTTPS, and the config has no `tls`.
        MissingExtraError: HTTP needs packages that are not installed.
    """
    if config.transport != HTTP:
        from serving.client.grpc import GrpcTransport

        return GrpcTransport(url, config, is_async=is_async)
    require("aiohttp" if is_async else "geventhttpclient", feature="transport 'http'", extra="http")
    if is_async:
        from serving.client.http_aio import AsyncHttpTransport

        return AsyncHttpTransport(url, config)
    from serving.client.http import BlockingHttpTransport

    return BlockingHttpTransport(url, config)
