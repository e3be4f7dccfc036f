"""The client that waits for each answer."""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from serving.client.config import DEFAULTS, ClientConfig
from serving.client.failures import CallError, explain
from serving.client.requests import Columns, PreparedRequest, join_scores, prepare, prepare_ranking
from serving.client.schema import ModelSchema
from serving.client.tensors import Array
from serving.client.transport import connect
from workflows.errors import RequestError, ServingError


class Client:
    """Scores rows with one model of a Triton server, one request after another. Threads may share one over gRPC.

    Args:
        url: HOST:PORT of the server's gRPC protocol, or of its HTTP protocol with that transport. Over gRPC also
            dns:///HOST:PORT or ipv4:HOST:PORT,HOST:PORT, of several servers, which are asked in turn.
        model_name: the ensemble, or any model with a batch dimension; its first output is what is asked for.
        config: timeouts, retries, encryption, transport.
        timeout_s: in place of the one in `config`.

    Raises:
        ServerError: no server answers at `url`.
        RequestError: the server has no such model.
    """

    def __init__(
        self, url: str, model_name: str, config: ClientConfig = DEFAULTS, *, timeout_s: float | None = None
    ) -> None:
        self.url = url
        self._config = config if timeout_s is None else replace(config, timeout_s=timeout_s)
        self._transport = connect(url, self._config)
        try:
            self.schema = ModelSchema.from_config(self._call(self._transport.describe, model_name, model_name))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def predict(self, columns: Columns) -> Array:
        """Score rows; more than `max_batch_size` are sent in several requests.

        Args:
            columns: one column per input of the model: an Arrow table, a pandas DataFrame or a mapping from names to
                arrays or lists of equal length. Lists of a pair of inputs `NAME__values` and `NAME__nnzs` are given as
                `NAME`, each of any length, or as the two tensors. None, NaN and nulls say that a value is missing. A
                column of candidates has one value per row, or is [num_rows, num_candidates].

        Returns:
            [num_rows], or [num_rows, width] when there is more than one value per row, as there is for several
            candidates.

        Raises:
            RequestError: the columns do not fit the model, or it refused them.
            ServerBusyError: too many requests wait for the model.
            DeadlineError: no answer came in time.
            ServerError: the server does not answer, or its answer does not fit its description of the model.
        """
        return self.infer(self.prepare(columns))

    def rank(self, row: Mapping[str, Any], candidates: Any) -> Array:
        """Score many candidates for one row, which is sent and read once for all of them.

        Args:
            row: name → value, a list for a column of lists, of all that the candidates share.
            candidates: their values, as a column of `predict`; a mapping from names to columns, or an Arrow table,
                where the model takes several. More than the server takes for one row are sent in several requests.

        Returns:
            [num_candidates].

        Raises:
            RequestError: the model takes one candidate per row, there are no candidates, or as `predict`.
            ServerBusyError, DeadlineError, ServerError: as `predict`.
        """
        return self.infer(self.prepare_ranking(row, candidates))

    def prepare_ranking(self, row: Mapping[str, Any], candidates: Any) -> PreparedRequest:
        """Check a row and its candidates against the model and lay them out for the wire; see `rank`.

        Raises:
            RequestError: as `rank`.
        """
        return prepare_ranking(row, candidates, self.schema, self._transport.encode)

    def prepare(self, columns: Columns) -> PreparedRequest:
        """Check rows against the model and lay them out for the wire.

        Raises:
            RequestError: a column is missing, unknown, of another length, or its values do not fit.
        """
        return prepare(columns, self.schema, self._transport.encode)

    def infer(self, request: PreparedRequest) -> Array:
        """Send a prepared request and wait for the scores.

        Returns:
            As `predict` or `rank`.

        Raises:
            ServingError: as `predict`.
        """
        responses = [self._call(self._transport.infer, message, self.schema.name) for message in request.messages]
        output = self.schema.outputs[0]
        answers = (self._transport.decode(response, output) for response in responses)
        return join_scores(answers, self.schema, request)

    def _call(self, method: Callable[[Any], Any], argument: Any, model_name: str) -> Any:
        attempt = 0
        while True:
            try:
                return method(argument)
            except CallError as failure:
                if attempt == self._config.retries or not self._config.may_retry(failure):
                    raise self._explained(failure, model_name) from failure.__cause__
            time.sleep(self._config.pause_s(attempt, random.random()))
            attempt += 1

    def _explained(self, failure: CallError, model_name: str) -> ServingError:
        if failure.is_unknown_model:
            with suppress(CallError):  # a server may keep its list to itself
                names = self._transport.model_names()
                return RequestError(f"{self.url} has no model {model_name!r}. Available: {names}.")
        return explain(failure, url=self.url, model_name=model_name, timeout_s=self._config.timeout_s)
