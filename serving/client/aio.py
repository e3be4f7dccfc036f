"""The client for asyncio."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from serving.client.config import DEFAULTS, ClientConfig
from serving.client.failures import CallError, explain
from serving.client.requests import Columns, PreparedRequest, join_scores, prepare, prepare_ranking
from serving.client.schema import ModelSchema
from serving.client.tensors import Array
from serving.client.transport import AsyncTransport, connect_async
from workflows.errors import RequestError, ServerError, ServingError


class AsyncClient:
    """Scores rows with one model of a Triton server, any number of requests at a time.

    It connects when its `async with` block is entered. A task that is cancelled while it waits cancels its request on
    the wire, and the server drops it if it has not begun.

    Args:
        url, model_name, config: as of `Client`.
    """

    def __init__(self, url: str, model_name: str, config: ClientConfig = DEFAULTS) -> None:
        self.url, self._model_name, self._config = url, model_name, config
        self._connection: tuple[AsyncTransport, ModelSchema] | None = None

    async def __aenter__(self) -> "AsyncClient":
        """Connect.

        Raises:
            ServerError: no server answers at the address.
            RequestError: the server has no such model.
        """
        transport = connect_async(self.url, self._config)
        try:
            config = await self._call(transport, transport.describe, self._model_name)
            self._connection = transport, ModelSchema.from_config(config)
        except BaseException:
            await transport.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection[0].close()
            self._connection = None

    @property
    def schema(self) -> ModelSchema:
        """What the model takes and gives.

        Raises:
            ServerError: not connected.
        """
        return self._connected[1]

    async def predict(self, columns: Columns) -> Array:
        """Score rows; see `Client.predict`."""
        return await self.infer(self.prepare(columns))

    async def rank(self, row: Mapping[str, Any], candidates: Any) -> Array:
        """Score many candidates for one row; see `Client.rank`."""
        return await self.infer(self.prepare_ranking(row, candidates))

    def prepare_ranking(self, row: Mapping[str, Any], candidates: Any) -> PreparedRequest:
        """Check a row and its candidates against the model and lay them out; see `Client.prepare_ranking`."""
        transport, schema = self._connected
        return prepare_ranking(row, candidates, schema, transport.encode)

    def prepare(self, columns: Columns) -> PreparedRequest:
        """Check rows against the model and lay them out for the wire; see `Client.prepare`."""
        transport, schema = self._connected
        return prepare(columns, schema, transport.encode)

    async def infer(self, request: PreparedRequest) -> Array:
        """Send a prepared request and wait for the scores; see `Client.infer`."""
        transport, schema = self._connected
        responses = [await self._call(transport, transport.infer, message) for message in request.messages]
        answers = (transport.decode(response, schema.outputs[0]) for response in responses)
        return join_scores(answers, schema, request)

    @property
    def _connected(self) -> tuple[AsyncTransport, ModelSchema]:
        if self._connection is None:
            raise ServerError("the client is not connected. Use it in an `async with` block.")
        return self._connection

    async def _call(self, transport: AsyncTransport, method: Callable[[Any], Awaitable[Any]], argument: Any) -> Any:
        attempt = 0
        while True:
            try:
                return await method(argument)
            except CallError as failure:
                if attempt == self._config.retries or not self._config.may_retry(failure):
                    raise await self._explained(failure, transport) from failure.__cause__
            await asyncio.sleep(self._config.pause_s(attempt, random.random()))
            attempt += 1

    async def _explained(self, failure: CallError, transport: AsyncTransport) -> ServingError:
        if failure.is_unknown_model:
            with suppress(CallError):  # a server may keep its list to itself
                names = await transport.model_names()
                return RequestError(f"{self.url} has no model {self._model_name!r}. Available: {names}.")
        return explain(failure, url=self.url, model_name=self._model_name, timeout_s=self._config.timeout_s)
