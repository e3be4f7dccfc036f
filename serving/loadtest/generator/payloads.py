"""Requests serialized before a run, from rows drawn from a table."""

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankline.serving.client import Client, ModelSchema
from rankline.serving.loadtest.generator.synthetic_rows import zipf
from rankline.workflows.core.errors import ServingError

_MAX_REQUESTS = 100_000
_MAX_BYTES = 256 << 20
_NUM_COMPARED = 16  # number of requests compared with the client's encoding of the same rows
_MAX_ONE_BY_ONE = 2_000  # limit for requests that cannot be cut out of larger ones, since each takes a millisecond


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Messages whose ids are their positions, and `draws` [num_requests, batch_size], their row numbers."""

    messages: list[bytes]
    draws: npt.NDArray[np.int64]


def lay_out(
    client: Client,
    rows: pa.Table,
    batch_size: int,
    count: int,
    rng: np.random.Generator,
    skew: float = 0.0,
    *,
    num_takers: int = 1,
) -> Requests:
    """Draw rows and serialize them.

    Args:
        client: client of the model.
        rows: table in one chunk, with only columns that the model takes.
        batch_size: number of rows per request.
        count: desired number of requests, which is reduced if they would need too much memory or time.
        skew: see `draw`.
        num_takers: number of client processes that share the requests. Each gets at least one, regardless of memory.

    Raises:
        RequestError: the rows do not fit the model.
    """
    one = client.prepare(rows.slice(0, 1)).messages[0].ByteSize()
    is_cut = can_be_cut(client.schema)
    most = _MAX_REQUESTS if is_cut else _MAX_ONE_BY_ONE
    count = max(min(count, most, max(_MAX_BYTES // (one * batch_size), 16)), num_takers)
    draws = draw(rng, rows.num_rows, (count, batch_size), skew)
    # If rows are not padded, many requests are checked and encoded at once and then cut apart.
    per_block = max(client.schema.max_batch_size // batch_size, 1) if is_cut else 1
    masks = {column.mask.name for column in client.schema.columns if column.mask is not None}
    messages: list[bytes] = []
    for begin in range(0, count, per_block):
        block = draws[begin : begin + per_block]
        (message,) = client.prepare(rows.take(pa.array(block.ravel()))).messages
        messages += _cut(message, begin, len(block), batch_size, masks)
    requests = Requests(messages=messages, draws=draws)
    _check_layout(client, rows, requests)
    return requests


def _check_layout(client: Client, rows: pa.Table, requests: Requests) -> None:
    for number in range(0, len(requests.messages), max(len(requests.messages) // _NUM_COMPARED, 1)):
        (alone,) = client.prepare(rows.take(pa.array(requests.draws[number]))).messages
        found = type(alone).FromString(requests.messages[number])
        found.id = alone.id
        if found != alone:
            raise ServingError(f"request {number} of the load generator is not laid out as the client does. Report it.")


def draw(rng: np.random.Generator, num_rows: int, shape: tuple[int, int], skew: float = 0.0) -> npt.NDArray[np.int64]:
    """Draw row numbers.

    Args:
        rng: random number generator.
        num_rows: number of rows to draw from.
        shape: shape of the result.
        skew: 0 draws every row once before any row is repeated. With a positive value, rows are ranked at random, and
            the frequency of a row falls with its rank to this power, as popularity does.
    """
    drawn: npt.NDArray[np.int64]
    if skew:
        drawn = rng.permutation(num_rows)[zipf(rng, num_rows, shape, skew)]
        return drawn
    count = math.prod(shape)
    deals = np.tile(np.arange(num_rows), (-(-count // num_rows), 1))
    drawn = rng.permuted(deals, axis=1).reshape(-1)[:count].reshape(shape)
    return drawn


def can_be_cut(schema: ModelSchema) -> bool:
    """Whether requests can be cut out of a larger one, because no row is padded to the longest in its batch."""
    return all(-1 not in tensor.dims for tensor in (*schema.inputs, *schema.optional_inputs))


def _parts(entry: Any, content: bytes, count: int) -> list[bytes]:
    """Split a tensor's content into `count` equal parts; strings follow their length in four bytes."""
    if entry.datatype != "BYTES":
        size = len(content) // count
        return [content[number * size : (number + 1) * size] for number in range(count)]
    elements, at, ends = math.prod(entry.shape) // count, 0, [0]
    for _ in range(count):
        for _ in range(elements):
            at += 4 + int.from_bytes(content[at : at + 4], "little")
        ends.append(at)
    return [content[begin:end] for begin, end in pairwise(ends)]


def _cut(message: Any, first: int, count: int, batch_size: int, masks: Container[str]) -> Iterator[bytes]:
    """Cut `count` requests of `batch_size` rows, numbered from `first`, out of a request with all their rows.

    As in the client, requests without missing values have no mask.
    """
    if count == 1:
        message.id = str(first)
        yield message.SerializeToString()
        return
    entries = [type(entry).FromString(entry.SerializeToString()) for entry in message.inputs]
    contents = [
        _parts(entry, content, count) for entry, content in zip(entries, message.raw_input_contents, strict=True)
    ]
    for entry in entries:
        entry.shape[0] = batch_size
    shown: list[int] = []
    for number, parts in enumerate(zip(*contents, strict=True), first):
        message.id = str(number)
        kept = [i for i, entry in enumerate(entries) if entry.name not in masks or b"\0" in parts[i]]
        if kept != shown:
            del message.inputs[:]
            message.inputs.extend(entries[i] for i in kept)
            shown = kept
        del message.raw_input_contents[:]
        message.raw_input_contents.extend(parts[i] for i in kept)
        yield message.SerializeToString()
