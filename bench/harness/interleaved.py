"""Latencies of several servers or models that receive the same prebuilt requests in turns, over one connection."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tritonclient.grpc import service_pb2

from bench.harness.fixtures import MERLIN_MODEL, infer_request
from bench.harness.report import medians_of
from rankline.serving.client import Client
from rankline.serving.loadtest.generator.payloads import Requests, lay_out
from rankline.serving.loadtest.generator.transport import OK, Transport
from rankline.workflows.core.errors import ParityError, ServingError
from rankline.workflows.schema.tensor_names import OFFSETS, VALUES

Array = npt.NDArray[Any]
Call = Callable[[int], Any]
"""Function from batch size to response."""
LaidOut = Mapping[int, Requests]
"""Mapping from batch size to requests."""

_WARMUP_CALLS = 10
_MAX_MESSAGES = 512
_MIN_MESSAGES = 4
_ROWS_SENT = 32_768  # total rows in the prebuilt requests of a batch size
_SCORE_TOLERANCE = 1e-5
_TIMEOUT_S = 60.0


def laid_out(url: str, model: str, rows: pa.Table, batch_sizes: Sequence[int]) -> LaidOut:
    """Build requests with Rankline's client, masks included; all models get the same rows."""
    counts = {size: min(_MAX_MESSAGES, max(_MIN_MESSAGES, _ROWS_SENT // size)) for size in batch_sizes}
    with Client(url, model) as client:
        return {size: lay_out(client, rows, size, count, np.random.default_rng(size)) for size, count in counts.items()}


def laid_out_for_merlin(rows: pa.Table, ours: LaidOut, model: str = MERLIN_MODEL) -> LaidOut:
    """Build requests with the rows of `ours` for merlin-systems' executor, whose tensors have no batch dimension."""

    def message(drawn: Array) -> bytes:
        return infer_request(model, _merlin_tensors(rows.take(pa.array(drawn))))

    return {size: replace(sent, messages=[message(drawn) for drawn in sent.draws]) for size, sent in ours.items()}


def _merlin_tensors(rows: pa.Table) -> dict[str, Array]:
    tensors = {}
    for name in rows.column_names:
        column = rows[name].combine_chunks()
        if pa.types.is_list(column.type):
            tensors[name + VALUES] = column.flatten().to_numpy(zero_copy_only=False)
            tensors[name + OFFSETS] = np.append(0, np.cumsum(column.value_lengths().to_numpy())).astype(np.int32)
        else:
            tensors[name] = column.to_numpy(zero_copy_only=False)
    return tensors


def asks(connection: Transport, requests: LaidOut) -> Call:
    """Return a function that sends the next request of a batch size, and returns the first output."""
    turns = {size: cycle(sent.messages) for size, sent in requests.items()}

    return lambda batch_size: first_output(ask(connection, next(turns[batch_size])))


def ask(connection: Transport, message: bytes) -> bytes:
    """Send a request and return the body of the response."""
    connection.send(0, message)
    while not (answers := connection.poll(_TIMEOUT_S)):
        if connection.failure:
            raise ServingError(f"the connection failed: {connection.failure}")
    if answers[0].status != OK:
        raise ServingError(f"the server rejected a request: {answers[0].body.decode()}")
    return answers[0].body


def first_output(body: bytes) -> Array:
    return np.frombuffer(service_pb2.ModelInferResponse.FromString(body).raw_output_contents[0], np.float32)


def check_same_scores(sides: Mapping[str, Call], batch_size: int) -> None:
    """Check that the first responses of all sides agree, since all requests hold the same rows."""
    first, *others = sides
    ours = sides[first](batch_size)
    for side in others:
        if not np.allclose(ours, sides[side](batch_size), rtol=0, atol=_SCORE_TOLERANCE):
            raise ParityError(f"{first} and {side} score the same rows differently, so they cannot be compared.")


def latencies(
    sides: Mapping[str, Call], batch_sizes: Sequence[int], repeats: int, turn_s: float
) -> dict[str, dict[str, float]]:
    """Measure p50, p99 and rows/s of each side and batch size with one request in flight, as medians over the turns."""
    turns: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
    for batch_size in batch_sizes:
        for call in sides.values():
            for _ in range(_WARMUP_CALLS):
                call(batch_size)
        for _ in range(repeats):
            for side, call in sides.items():
                latencies_ms = _turn(call, batch_size, turn_s)
                figures = turns[side]
                figures.setdefault(f"p50_ms@{batch_size}", []).append(float(np.percentile(latencies_ms, 50)))
                figures.setdefault(f"p99_ms@{batch_size}", []).append(float(np.percentile(latencies_ms, 99)))
                rate = batch_size * len(latencies_ms) / (sum(latencies_ms) / 1e3)
                figures.setdefault(f"rows_per_s@{batch_size}", []).append(rate)
    return medians_of(turns)


def _turn(call: Call, batch_size: int, turn_s: float) -> list[float]:
    latencies_ms = []
    end = time.perf_counter() + turn_s
    while (begin := time.perf_counter()) < end:
        call(batch_size)
        latencies_ms.append((time.perf_counter() - begin) * 1e3)
    return latencies_ms
