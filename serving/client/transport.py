"""What carries requests to a server and answers back, and the choice of it."""

from collections.abc import Sequence
from typing import Any, Protocol

from serving.client.config import HTTP, ClientConfig
from serving.client.schema import ModelSchema, TensorSchema
from serving.client.tensors import Array, WireTensor
from workflows.extras import require


class Transport(Protocol):
    """A connection that waits for each answer. Calls raise `CallError`."""

    def describe(self, model_name: str) -> Any:
        """The model's `inference.ModelConfig`."""

    def model_names(self) -> list[str]:
        """Models that are ready."""

    def encode(self, schema: ModelSchema, tensors: Sequence[WireTensor]) -> Any:
        """A message that asks for the first output."""

    def infer(self, message: Any) -> Any:
        """Send a message; returns what `decode` takes."""

    def decode(self, response: Any, tensor: TensorSchema) -> Array:
        """The output, [num_rows, ...]. Raises ValueError, IndexError or struct.error where it does not fit."""

    def close(self) -> None:
        """End the connection."""


class AsyncTransport(Protocol):
    """The same for asyncio."""

    async def describe(self, model_name: str) -> Any:
        """See `Transport`."""

    async def model_names(self) -> list[str]:
        """See `Transport`."""

    def encode(self, schema: ModelSchema, tensors: Sequence[WireTensor]) -> Any:
        """See `Transport`."""

    async def infer(self, message: Any) -> Any:
        """See `Transport`."""

    def decode(self, response: Any, tensor: TensorSchema) -> Array:
        """See `Transport`."""

    async def close(self) -> None:
        """See `Transport`."""


def connect(url: str, config: ClientConfig) -> Transport:
    """Make a connection; nothing is sent yet.

    Raises:
        ConfigError: `url` asks for HTTPS, and the config has no `tls`.
        MissingExtraError: HTTP needs packages that are not installed.
    """
    if config.transport == HTTP:
        require("geventhttpclient", feature="transport 'http'", extra="http")
        from serving.client.http import HttpTransport

        return HttpTransport(url, config)
    from serving.client.grpc import GrpcTransport

    return GrpcTransport(url, config)


def connect_async(url: str, config: ClientConfig) -> AsyncTransport:
    """Make a connection for the running event loop; nothing is sent yet.

    Raises:
        ConfigError: `url` asks for HTTPS, and the config has no `tls`.
        MissingExtraError: HTTP needs packages that are not installed.
    """
    if config.transport == HTTP:
        require("aiohttp", feature="transport 'http'", extra="http")
        from serving.client.http_aio import AsyncHttpTransport

        return AsyncHttpTransport(url, config)
    from serving.client.grpc import AsyncGrpcTransport

    return AsyncGrpcTransport(url, config)
