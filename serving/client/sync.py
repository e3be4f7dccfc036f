"""The blocking client."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rankline.serving.client.config import DEFAULTS, ClientConfig
from rankline.serving.client.core import Core, Transport, connect, run
from rankline.serving.client.encoding import Array
from rankline.serving.client.request_builder import Columns, PreparedRequest
from rankline.serving.client.schema import ModelSchema


class Client:
    """A blocking client that scores rows with one model on a Triton server. Threads may share a client.

    A forked process opens its own connection; a pickled client connects when it is unpickled.

    Args:
        url: HOST:PORT of the server's gRPC protocol, or of its HTTP protocol with that transport or as
            http://HOST:PORT; https:// and grpcs:// encrypt. Over gRPC also dns:///HOST:PORT or
            ipv4:HOST:PORT,HOST:PORT for several servers, which are used in turn.
        model_name: the ensemble, or any model with a batch dimension.
        config: timeouts, retries, encryption, transport.
        timeout_s: overrides the timeout in `config`.
        transport: transport to use instead of a connection to `url`; `url` then only appears in messages.

    Raises:
        ServerError: no server responds at `url`.
        RequestError: the server does not have the model.
    """

    def __init__(
        self,
        url: str,
        model_name: str,
        config: ClientConfig = DEFAULTS,
        *,
        timeout_s: float | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.url, self._model_name, self._transport = url, model_name, transport
        self._config = config if timeout_s is None else replace(config, timeout_s=timeout_s)
        self._connected, self._process = self._connect(), os.getpid()
        self._inherited: list[Core] = []
        run(self._connected.connect())

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        if self._transport is not None:
            raise TypeError(
                f"this client is connected to a model at {self.url}, so it cannot be pickled. Create a client in each "
                "process."
            )
        return type(self), (self.url, self._model_name, self._config)

    def close(self) -> None:
        if self._process == os.getpid():
            run(self._connected.close())

    @property
    def schema(self) -> ModelSchema:
        return self._connected.schema

    def predict(self, columns: Columns) -> Array:
        """Score rows, in several requests if there are more than `max_batch_size`.

        Args:
            columns: one column per input of the model, as an Arrow, pandas or polars table, or as a mapping from names
                to arrays or lists of equal length. Alternatively one row, a mapping from names to values, or a list of
                such rows. A list column, with the inputs `NAME__values` and `NAME__nnzs`, is passed as `NAME` with
                lists of any length, or as these two tensors. None, NaN and nulls mark missing values. A candidate
                column has one value per row, or the shape [num_rows, num_candidates].

        Returns:
            Scores [num_rows], or [num_rows, width] if rows have several values, as with several candidates or classes.
            Several outputs are concatenated along the second axis; `schema.by_output` splits them.

        Raises:
            RequestError: the columns do not fit the model, or the model rejected them.
            ServerBusyError: too many requests wait for the model.
            DeadlineError: the response did not arrive in time.
            ServerError: the server does not respond, or its response does not match its description of the model.
        """
        return self.infer(self.prepare(columns))

    def rank(self, row: Mapping[str, Any], candidates: Any) -> Array:
        """Score many candidates for one row, which is sent and processed once for all of them.

        Args:
            row: name → value of the columns that all candidates share; a list for a list column.
            candidates: values of the candidates, as a column of `predict`; for models with several candidate columns, a
                mapping from names to columns or an Arrow table. If there are more than the server accepts per row, they
                are sent in several requests.

        Returns:
            Scores [num_candidates].

        Raises:
            RequestError: the model takes one candidate per row, there are no candidates, or as in `predict`.
            ServerBusyError, DeadlineError, ServerError: as in `predict`.
        """
        return self.infer(self.prepare_ranking(row, candidates))

    def prepare_ranking(self, row: Mapping[str, Any], candidates: Any) -> PreparedRequest:
        """Check a row and its candidates against the model and encode them for sending; see `rank`.

        Raises:
            RequestError: as in `rank`.
        """
        return self._core.prepare_ranking(row, candidates)

    def prepare(self, columns: Columns) -> PreparedRequest:
        """Check rows against the model and encode them for sending.

        Raises:
            RequestError: a column is missing, unknown, of another length, or its values do not fit.
        """
        return self._core.prepare(columns)

    def infer(self, request: PreparedRequest) -> Array:
        """Send a prepared request and wait for the scores.

        Returns:
            Scores as in `predict` or `rank`.

        Raises:
            ServingError: as in `predict`.
        """
        return run(self._core.infer(request))

    @property
    def _core(self) -> Core:
        """The connection of this process, reopened after a fork because a child cannot use its parent's connection."""
        if self._process != os.getpid() and self._transport is None:
            connected = self._connect()
            connected.schema = self._connected.schema
            self._inherited.append(self._connected)  # closing it would wait for the parent's threads
            self._connected, self._process = connected, os.getpid()
        return self._connected

    def _connect(self) -> Core:
        transport = self._transport or connect(self.url, self._config, is_async=False)
        return Core(self.url, self._model_name, self._config, transport, _sleep)


async def _sleep(duration_s: float) -> None:
    time.sleep(duration_s)
