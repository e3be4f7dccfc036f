"""The client that waits for each answer."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rankline.serving.client.config import DEFAULTS, ClientConfig
from rankline.serving.client.core import Core, run
from rankline.serving.client.encoding import Array
from rankline.serving.client.request_builder import Columns, PreparedRequest
from rankline.serving.client.schema import ModelSchema
from rankline.serving.client.transport import Transport, connect


class Client:
    """Scores rows with one model of a Triton server, one request after another. Threads may share one.

    A forked process makes a connection of its own; a pickled client connects where it is loaded.

    Args:
        url: HOST:PORT of the server's gRPC protocol, or of its HTTP protocol with that transport or as
            http://HOST:PORT; https:// and grpcs:// encrypt. Over gRPC also dns:///HOST:PORT or
            ipv4:HOST:PORT,HOST:PORT, of several servers, which are asked in turn.
        model_name: the ensemble, or any model with a batch dimension; its first output is what is asked for.
        config: timeouts, retries, encryption, transport.
        timeout_s: in place of the one in `config`.
        transport: in place of a connection to `url`, which then is what messages name.

    Raises:
        ServerError: no server answers at `url`.
        RequestError: the server has no such model.
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
                f"the client of {self.url} holds a model, which cannot be pickled. Open it in each process."
            )
        return type(self), (self.url, self._model_name, self._config)

    def close(self) -> None:
        if self._process == os.getpid():
            run(self._connected.close())

    @property
    def schema(self) -> ModelSchema:
        """The model's inputs and outputs."""
        return self._connected.schema

    def predict(self, columns: Columns) -> Array:
        """Score rows; more than `max_batch_size` are sent in several requests.

        Args:
            columns: one column per input of the model: a table of Arrow, pandas or polars, or a mapping from names to
                arrays or lists of equal length. Or one row, a mapping from names to values, or a list of such rows.
                Lists of a pair of inputs `NAME__values` and `NAME__nnzs` are given as `NAME`, each of any length, or
                as the two tensors. None, NaN and nulls say that a value is missing. A column of candidates has one
                value per row, or is [num_rows, num_candidates].

        Returns:
            [num_rows], or [num_rows, width] when there is more than one value per row, as there is for several
            candidates or classes; of several outputs side by side, which `schema.by_output` takes apart.

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
        return self._core.prepare_ranking(row, candidates)

    def prepare(self, columns: Columns) -> PreparedRequest:
        """Check rows against the model and lay them out for the wire.

        Raises:
            RequestError: a column is missing, unknown, of another length, or its values do not fit.
        """
        return self._core.prepare(columns)

    def infer(self, request: PreparedRequest) -> Array:
        """Send a prepared request and wait for the scores.

        Returns:
            As `predict` or `rank`.

        Raises:
            ServingError: as `predict`.
        """
        return run(self._core.infer(request))

    @property
    def _core(self) -> Core:
        """The connection of this process: after a fork, threads and sockets stay with the parent."""
        if self._process != os.getpid() and self._transport is None:
            connected = self._connect()
            connected.schema = self._connected.schema
            self._inherited.append(self._connected)  # closing it would wait for those threads
            self._connected, self._process = connected, os.getpid()
        return self._connected

    def _connect(self) -> Core:
        transport = self._transport or connect(self.url, self._config, is_async=False)
        return Core(self.url, self._model_name, self._config, transport, _sleep)


async def _sleep(duration_s: float) -> None:
    time.sleep(duration_s)
