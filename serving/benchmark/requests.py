"""Requests laid out before a run: rows drawn from real ones, another draw for each request, as bytes for the wire."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from serving.client import Client, ModelSchema

_MOST_REQUESTS = 100_000
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What can be sent.

    Attributes:
        messages: one for each request.
        draws: [num_requests, batch_size], which rows each holds.
    """

    messages: list[bytes]
    draws: npt.NDArray[np.int64]


def lay_out(
    client: Client, rows: pa.Table, batch_size: int, count: int, rng: np.random.Generator, skew: float = 0.0
) -> Requests:
    """Draw rows and serialise them.

    Args:
        client: knows the model.
        rows: only columns that the model takes, in one chunk.
        batch_size: rows of each request.
        count: how many requests are wanted; there are fewer if they would take too much memory.
        rng: draws.
        skew: see `draw`.

    Raises:
        RequestError: the rows do not fit the model.
    """
    one = client.prepare(rows.slice(0, 1)).messages[0].ByteSize()
    count = min(count, _MOST_REQUESTS, max(_MOST_BYTES // (one * batch_size), 16))
    draws = draw(rng, rows.num_rows, (count, batch_size), skew)
    # Many requests are checked and laid out at once and then cut apart, where all rows have the same length.
    is_block = is_fixed(client.schema) and not _has_missing(rows)
    per_block = max(client.schema.max_batch_size // batch_size, 1) if is_block else 1
    messages: list[bytes] = []
    for begin in range(0, count, per_block):
        block = draws[begin : begin + per_block]
        (message,) = client.prepare(rows.take(pa.array(block.ravel()))).messages
        messages += _cut(message, len(block), batch_size)
    return Requests(messages=messages, draws=draws)


def draw(rng: np.random.Generator, num_rows: int, shape: tuple[int, int], skew: float = 0.0) -> npt.NDArray[np.int64]:
    """Numbers of rows.

    Args:
        rng: draws.
        num_rows: how many there are to draw from.
        shape: of the result.
        skew: 0 draws all alike; above 0 the rows are ranked at random, and the share of a row falls with its rank to
            this power, as popularity does.
    """
    if not skew:
        return rng.integers(0, num_rows, shape)
    shares = np.cumsum(np.arange(1, num_rows + 1) ** -skew)
    ranks = np.searchsorted(shares, rng.random(shape) * shares[-1], side="right")
    drawn: npt.NDArray[np.int64] = rng.permutation(num_rows)[np.minimum(ranks, num_rows - 1)]
    return drawn


def is_fixed(schema: ModelSchema) -> bool:
    """Whether each row takes the same number of bytes, so that requests can be cut out of a larger one."""
    tensors = (*schema.inputs, *schema.optional_inputs)
    return all(tensor.datatype != "BYTES" and -1 not in tensor.dims for tensor in tensors)


def _has_missing(rows: pa.Table) -> bool:
    """Values are missing, so that requests differ in whether they say which."""
    return any(
        column.null_count or (pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())
        for column in rows.columns
    )


def _cut(message: Any, count: int, batch_size: int) -> Iterator[bytes]:
    """`count` requests of `batch_size` rows out of one that holds all their rows."""
    if count == 1:
        yield message.SerializeToString()
        return
    contents = list(message.raw_input_contents)
    for entry in message.inputs:
        entry.shape[0] = batch_size
    for number in range(count):
        del message.raw_input_contents[:]
        for content in contents:
            size = len(content) // count
            message.raw_input_contents.append(content[number * size : (number + 1) * size])
        yield message.SerializeToString()
