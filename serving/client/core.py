"""The logic shared by both clients: reading the model's schema, sending requests, retrying, and explaining failures.

Each transport is written once for both clients, as coroutines. Coroutines of a blocking transport never suspend, so
`Client` runs them to completion immediately (`run`); the others wait in the event loop.
"""

import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from rankline.serving.client.config import GRPC, HTTP, ClientConfig, ClientTls
from rankline.serving.client.encoding import Array, WireTensor
from rankline.serving.client.errors import CallError, explain
from rankline.serving.client.request_builder import Columns, PreparedRequest, join_scores, prepare, prepare_ranking
from rankline.serving.client.schema import ModelSchema
from rankline.workflows.core.errors import ConfigError, RequestError, ServingError, in_short
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.tensors import Tensor, concat_outputs

_Result = TypeVar("_Result")
_MIN_TIMEOUT_S = 1e-3  # after an overlong pause no time is left, and some transports take 0 as no timeout
_SCHEMES = {"grpc": (GRPC, False), "grpcs": (GRPC, True), "http": (HTTP, False), "https": (HTTP, True)}


class Transport(Protocol):
    """A connection to a server. A failed call raises `CallError` within `timeout_s` and is not retried."""

    async def describe(self, model_name: str, timeout_s: float) -> Any:
        """Return the model's `inference.ModelConfig`."""

    async def model_names(self, timeout_s: float) -> list[str]:
        """Return the names of the models that are ready."""

    def encode(self, schema: ModelSchema, tensors: Sequence[WireTensor]) -> Any:
        """Encode tensors as a request message that asks for all outputs of the model."""

    async def infer(self, message: Any, timeout_s: float) -> Any:
        """Send a message and return the response, to be passed to `decode`."""

    def decode(self, response: Any, tensor: Tensor) -> Array:
        """Decode an output of shape [num_rows, ...]. Raise ValueError, IndexError or struct.error if malformed."""

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
        raise ConfigError(f"{url!r} is not a valid address: {in_short(error)}. Expected HOST:PORT.") from None
    for module in ("aiohttp", "geventhttpclient"):
        require(module, feature="transport 'http'", extra="http")
    from rankline.serving.client.http import AsyncHttpTransport, BlockingHttpTransport

    return (AsyncHttpTransport if is_async else BlockingHttpTransport)(url, config)


def by_scheme(url: str, config: ClientConfig) -> tuple[str, ClientConfig]:
    """Remove the scheme and Triton's /v2 path from a URL, and apply the scheme's transport and TLS to the config.

    Raises:
        ConfigError: scheme and config contradict each other.
    """
    scheme, _, address = url.partition("://")
    if not address or scheme not in _SCHEMES:
        return url, config
    transport, is_encrypted = _SCHEMES[scheme]
    if transport == GRPC != config.transport:
        raise ConfigError(
            f"{url} requires gRPC, but transport is {config.transport!r}. Change the URL or the transport."
        )
    tls = config.tls or (ClientTls() if is_encrypted else None)
    return re.sub(r"/(v2(/.*)?)?$", "", address), replace(config, transport=transport, tls=tls)


class Core:
    """A connection to one model. Retries use the given `sleep` and `clock`, both in seconds.

    Attributes:
        schema: inputs and outputs of the model, available after `connect`.
    """

    schema: ModelSchema

    def __init__(
        self,
        url: str,
        model_name: str,
        config: ClientConfig,
        transport: Transport,
        sleep: Callable[[float], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._model_name, self._config = url, model_name, config
        self._transport, self._sleep, self._clock = transport, sleep, clock

    async def connect(self) -> None:
        """Read the model's schema from the server, and close the connection if that fails.

        Raises:
            ServerError: no server responds at the address.
            RequestError: the server does not have the model.
        """
        wait_s = self._config.connect_timeout_s
        timeout_s = max(wait_s, self._config.timeout_s)
        try:
            described = await self._call(
                self._transport.describe, self._model_name, timeout_s, lambda failure, s: failure.is_lost and s < wait_s
            )
            self.schema = ModelSchema.from_config(described)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._transport.close()

    def prepare(self, columns: Columns) -> PreparedRequest:
        return prepare(columns, self.schema, self._transport.encode)

    def prepare_ranking(self, row: Mapping[str, Any], candidates: Any) -> PreparedRequest:
        return prepare_ranking(row, candidates, self.schema, self._transport.encode)

    async def infer(self, request: PreparedRequest) -> Array:
        """Send the messages of a request in sequence, and join their scores."""
        config = self._config
        responses = [
            await self._call(self._transport.infer, message, config.timeout_s, lambda f, _: config.may_retry(f))
            for message in request.messages
        ]
        outputs, decode = self.schema.outputs, self._transport.decode
        answers = (concat_outputs([decode(response, output) for output in outputs]) for response in responses)
        return join_scores(answers, self.schema, request)

    async def _call(
        self,
        method: Callable[[Any, float], Awaitable[Any]],
        argument: Any,
        timeout_s: float,
        may_retry: Callable[[CallError, float], bool],
    ) -> Any:
        """Call a method and retry it on failure, spending at most `timeout_s` on all calls and pauses.

        `may_retry` takes a failure and the number of seconds from the first call to the next one.
        """
        begin_s, attempt, left_s = self._clock(), 0, timeout_s
        while True:
            pause_s = self._config.pause_s(attempt, random.random())
            try:
                return await method(argument, left_s)
            except CallError as failure:
                again_s = self._clock() - begin_s + pause_s
                if again_s >= timeout_s or not may_retry(failure, again_s):
                    raise await self._explained(failure) from failure.__cause__
            await self._sleep(pause_s)
            attempt, left_s = attempt + 1, max(timeout_s - (self._clock() - begin_s), _MIN_TIMEOUT_S)

    async def _explained(self, failure: CallError) -> ServingError:
        if failure.is_unknown_model:
            with suppress(CallError):  # the model list may be restricted
                names = await self._transport.model_names(self._config.timeout_s)
                return RequestError(f"{self._url} has no model {self._model_name!r}. Available: {names}.")
        return explain(failure, url=self._url, model_name=self._model_name, timeout_s=self._config.timeout_s)


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine that never suspends, such as a call of a blocking transport, without an event loop.

    Raises:
        RuntimeError: the coroutine suspended.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking transport tried to wait for an event loop.")
