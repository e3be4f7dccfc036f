"""The part that both clients share: describe the model, send, pause before a retry, and explain failures."""

import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from rankline.serving.client.config import ClientConfig
from rankline.serving.client.encoding import Array
from rankline.serving.client.errors import CallError, explain
from rankline.serving.client.request_builder import Columns, PreparedRequest, join_scores, prepare, prepare_ranking
from rankline.serving.client.schema import ModelSchema
from rankline.serving.client.transport import Transport
from rankline.workflows.core.errors import RequestError, ServingError
from rankline.workflows.schema.tensors import side_by_side

_Result = TypeVar("_Result")
_MIN_TIMEOUT_S = 1e-3  # a pause that took longer than it should leaves no time, and 0 is no timeout to some transports


class Core:
    """One model over one connection; `sleep` waits for some seconds, and `clock` counts them.

    Attributes:
        schema: the model's inputs and outputs, once connected.
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
        """Ask the server what the model takes; closes the connection where that fails.

        Raises:
            ServerError: no server answers at the address.
            RequestError: the server has no such model.
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
        """Check rows against the model and lay them out for the wire."""
        return prepare(columns, self.schema, self._transport.encode)

    def prepare_ranking(self, row: Mapping[str, Any], candidates: Any) -> PreparedRequest:
        """Check a row and its candidates against the model and lay them out for the wire."""
        return prepare_ranking(row, candidates, self.schema, self._transport.encode)

    async def infer(self, request: PreparedRequest) -> Array:
        """Send the messages of a request one after another, and join their scores."""
        config = self._config
        responses = [
            await self._call(self._transport.infer, message, config.timeout_s, lambda f, _: config.may_retry(f))
            for message in request.messages
        ]
        outputs, decode = self.schema.outputs, self._transport.decode
        answers = (side_by_side([decode(response, output) for output in outputs]) for response in responses)
        return join_scores(answers, self.schema, request)

    async def _call(
        self,
        method: Callable[[Any, float], Awaitable[Any]],
        argument: Any,
        timeout_s: float,
        may_retry: Callable[[CallError, float], bool],
    ) -> Any:
        """Call until there is an answer, `timeout_s` for all calls and pauses together.

        `may_retry` says whether a failure allows another call, so many seconds after the first one began.
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
            with suppress(CallError):  # a server may keep its list to itself
                names = await self._transport.model_names(self._config.timeout_s)
                return RequestError(f"{self._url} has no model {self._model_name!r}. Available: {names}.")
        return explain(failure, url=self._url, model_name=self._model_name, timeout_s=self._config.timeout_s)


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine that never suspends, as over a blocking transport, without an event loop.

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
