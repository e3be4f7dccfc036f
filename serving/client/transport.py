"""Interface and factory of transports.

Each transport is written once for both clients, as coroutines. Coroutines of a blocking transport never suspend, so
`Client` runs them to completion immediately (`core.run`); the others wait in the event loop.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from rankline.serving.client.config import GRPC, HTTP, ClientConfig, ClientTls
from rankline.serving.client.encoding import Array, WireTensor
from rankline.serving.client.schema import ModelSchema
from rankline.workflows.core.errors import ConfigError, in_short
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.tensors import Tensor

_SCHEMES = {"grpc": (GRPC, False), "grpcs": (GRPC, True), "http": (HTTP, False), "https": (HTTP, True)}


class Transport(Protocol):
    """A connection. Calls raise `CallError`, after `timeout_s` at the latest, and are never retried."""

    async def describe(self, model_name: str, timeout_s: float) -> Any:
        """Return the model's `inference.ModelConfig`."""

    async def model_names(self, timeout_s: float) -> list[str]:
        """Return the names of the models that are ready."""

    def encode(self, schema: ModelSchema, tensors: Sequence[WireTensor]) -> Any:
        """Return a message that requests all outputs."""

    async def infer(self, message: Any, timeout_s: float) -> Any:
        """Send a message and return the response, to be passed to `decode`."""

    def decode(self, response: Any, tensor: Tensor) -> Array:
        """Return an output, [num_rows, ...]. Raise ValueError, IndexError or struct.error if it does not fit."""

    async def close(self) -> None:
        pass


def connect(url: str, config: ClientConfig, *, is_async: bool) -> Transport:
    """Create a transport without connecting to the server yet.

    Args:
        config: choice and options of the transport.
        is_async: True for calls in the running event loop, False for blocking calls.

    Raises:
        ConfigError: `url` is not an address, or its scheme contradicts the config.
        MissingExtraError: HTTP needs packages that are not installed.
    """
    url, config = by_scheme(url, config)
    if config.transport != HTTP:
        from rankline.serving.client.grpc import GrpcTransport

        return GrpcTransport(url, config, is_async=is_async)
    try:
        _ = urlsplit(f"//{url}").port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not an address: {in_short(error)}. Expected HOST:PORT.") from None
    require("aiohttp" if is_async else "geventhttpclient", feature="transport 'http'", extra="http")
    if is_async:
        from rankline.serving.client.http_async import AsyncHttpTransport

        return AsyncHttpTransport(url, config)
    from rankline.serving.client.http import BlockingHttpTransport

    return BlockingHttpTransport(url, config)


def by_scheme(url: str, config: ClientConfig) -> tuple[str, ClientConfig]:
    """Remove the scheme, and the path of Triton's protocol, from an address, and apply the scheme to the config.

    Raises:
        ConfigError: scheme and config contradict each other.
    """
    scheme, _, address = url.partition("://")
    if not address or scheme not in _SCHEMES:
        return url, config
    transport, is_encrypted = _SCHEMES[scheme]
    if transport == GRPC != config.transport:
        raise ConfigError(f"{url} asks for gRPC, but transport is {config.transport!r}. Leave one of them out.")
    tls = config.tls or (ClientTls() if is_encrypted else None)
    return re.sub(r"/(v2(/.*)?)?$", "", address), replace(config, transport=transport, tls=tls)
