"""The asyncio client."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from rankline.serving.client.config import DEFAULTS, ClientConfig
from rankline.serving.client.core import Core, connect
from rankline.serving.client.encoding import Array
from rankline.serving.client.request_builder import Columns, PreparedRequest
from rankline.serving.client.schema import ModelSchema
from rankline.workflows.core.errors import ServerError


class AsyncClient:
    """An asyncio client for one model on a Triton server, which supports any number of concurrent requests.

    The client connects when its `async with` block is entered; outside the block, its methods raise ServerError.
    Canceling a task that waits for scores cancels its request, which the server drops unless it is already running.
    Arguments, results and errors are the same as in `Client`.
    """

    def __init__(self, url: str, model_name: str, config: ClientConfig = DEFAULTS) -> None:
        self.url, self._model_name, self._config = url, model_name, config
        self._connected: Core | None = None

    async def __aenter__(self) -> "AsyncClient":
        """Connect to the server."""
        transport = connect(self.url, self._config, is_async=True)
        core = Core(self.url, self._model_name, self._config, transport, asyncio.sleep)
        await core.connect()
        self._connected, self._process = core, os.getpid()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> Any:
        return type(self), (self.url, self._model_name, self._config)

    async def close(self) -> None:
        if self._connected is not None:
            core, self._connected = self._connected, None
            await core.close()

    @property
    def schema(self) -> ModelSchema:
        return self._core.schema

    async def predict(self, columns: Columns) -> Array:
        """Score rows; see `Client.predict`."""
        return await self.infer(self.prepare(columns))

    async def rank(self, row: Mapping[str, Any], candidates: Any) -> Array:
        """Score many candidates for one row; see `Client.rank`."""
        return await self.infer(self.prepare_ranking(row, candidates))

    def prepare_ranking(self, row: Mapping[str, Any], candidates: Any) -> PreparedRequest:
        """Check a row and its candidates against the model and encode them; see `Client.prepare_ranking`."""
        return self._core.prepare_ranking(row, candidates)

    def prepare(self, columns: Columns) -> PreparedRequest:
        """Check rows against the model and encode them; see `Client.prepare`."""
        return self._core.prepare(columns)

    async def infer(self, request: PreparedRequest) -> Array:
        """Send a prepared request and wait for the scores; see `Client.infer`."""
        return await self._core.infer(request)

    @property
    def _core(self) -> Core:
        if self._connected is None:
            raise ServerError("the client is not connected. Use it in an `async with` block.")
        if self._process != os.getpid():
            raise ServerError(
                "the client was connected before this process was forked. Create a client in each process."
            )
        return self._connected
