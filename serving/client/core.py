"""What both clients do: learn what a model takes, send, wait before a retry, and explain what failed."""

import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from serving.client.config import ClientConfig
from serving.client.failures import CallError, explain
from serving.client.requests import Columns, PreparedRequest, join_scores, prepare, prepare_ranking
from serving.client.schema import ModelSchema
from serving.client.tensors import Array
from serving.client.transport import Transport
from workflows.errors import RequestError, ServingError
from workflows.tensors import side_by_side

_Result = TypeVar("_Result")


class Core:
    """One model over one connection.

    Args:
        url: for messages.
        model_name: an ensemble or a model.
        config: retries and their pauses.
        transport: to the server.
        sleep: waits for some seconds.

    Attributes:
        schema: what the model takes and gives, once connected.
    """

    schema: ModelSchema

    def __init__(
        self,
        url: str,
        model_name: str,
        config: ClientConfig,
        transport: Transport,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._url, self._model_name, self._config = url, model_name, config
        self._transport, self._sleep = transport, sleep

    async def connect(self) -> None:
        """Ask the server what the model takes; ends the connection where that fails.

        Raises:
            ServerError: no server answers at the address.
            RequestError: the server has no such model.
        """
        try:
            self.schema = ModelSchema.from_config(await self._call(self._transport.describe, self._model_name))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._transport.close()

    def prepare(self, columns: Columns) -> PreparedRequest:
        """Check rows against the model and lay them out for the wire."""
        return prepare(columns, self.schema, self._transport.encode)

    def prepare_ranking(self, row: Mapping[str, Any], candidates: Any) -> PreparedRequest:
        """Check a row and its candidates against the model and lay them out for the wire."""
        return prepare_ranking(row, candidates, self.schema, self._transport.encode)

    async def infer(self, request: PreparedRequest) -> Array:
        """Send the messages of a request one after another, and join their scores."""
        responses = [await self._call(self._transport.infer, message) for message in request.messages]
        outputs, decode = self.schema.outputs, self._transport.decode
        answers = (side_by_side([decode(response, output) for output in outputs]) for response in responses)
        return join_scores(answers, self.schema, request)

    async def _call(self, method: Callable[[Any], Awaitable[Any]], argument: Any) -> Any:
        attempt = 0
        while True:
            try:
                return await method(argument)
            except CallError as failure:
                if attempt == self._config.retries or not self._config.may_retry(failure):
                    raise await self._explained(failure) from failure.__cause__
            await self._sleep(self._config.pause_s(attempt, random.random()))
            attempt += 1

    async def _explained(self, failure: CallError) -> ServingError:
        if failure.is_unknown_model:
            with suppress(CallError):  # a server may keep its list to itself
                names = await self._transport.model_names()
                return RequestError(f"{self._url} has no model {self._model_name!r}. Available: {names}.")
        return explain(failure, url=self._url, model_name=self._model_name, timeout_s=self._config.timeout_s)


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine that never gives up control, as over a blocking transport, without an event loop.

    Raises:
        RuntimeError: it gave up control.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking transport waits for an event loop.")
