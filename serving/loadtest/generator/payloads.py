"""Serialize requests before a run, from rows sampled from a table or generated from the known values of each column.

Held-out rows repeat known combinations; generated rows contain combinations that no cache can have stored. Columns are
drawn independently of each other. A column's values are ranked by their frequency in the known rows, and drawn from a
Zipf distribution over this rank, with a few unseen values.
"""

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankline.serving.client import Client, ModelSchema
from rankline.workflows.core.errors import ServingError
from rankline.workflows.schema.arrow_types import holds_lists, is_text

_MAX_REQUESTS = 100_000
_MAX_BYTES = 256 << 20
_NUM_COMPARED = 16  # number of requests compared with the client's encoding of the same rows
_MAX_ONE_BY_ONE = 2_000  # limit for requests that cannot be cut out of larger ones, since each takes a millisecond

UNSEEN_SHARE = 0.01
"""Fraction of integers and strings with values that no known row has."""
MISSING_SHARE = 0.01
"""Fraction of missing values in columns with a mask, in addition to values missing in the known rows."""


def generate(
    known: pa.Table, schema: ModelSchema, num_rows: int, exponent: float, rng: np.random.Generator
) -> pa.Table:
    """Generate rows from the column values in `known`, which must have rows, one chunk and only the model's columns.

    The model's schema determines the columns that may have missing values. An exponent of 0 is a uniform distribution.
    """
    with_mask = {column.name for column in schema.columns if column.mask is not None}
    return pa.table(
        {
            name: _column(known[name].combine_chunks(), num_rows, exponent, rng, may_lack=name in with_mask)
            for name in known.column_names
        }
    )


def zipf(rng: np.random.Generator, num_ranks: int, shape: int | tuple[int, ...], exponent: float) -> Any:
    """Sample Zipf-distributed ranks, starting at 0, as an int64 array of the given shape."""
    shares = np.cumsum(np.arange(1, num_ranks + 1) ** -exponent)
    ranks = np.searchsorted(shares, rng.random(shape) * shares[-1], side="right")
    return np.minimum(ranks, num_ranks - 1)


def _column(known: Any, count: int, exponent: float, rng: np.random.Generator, *, may_lack: bool) -> pa.Array:
    if pa.types.is_dictionary(known.type):
        known = known.dictionary_decode()
    if not holds_lists(known.type):
        return _values(known, count, exponent, rng, missing_share=MISSING_SHARE if may_lack else 0.0)
    # Draw list lengths, including missing lists, from the known lists, and elements from the values of all known lists.
    lists = known.cast(pa.list_(known.type.value_type))
    lengths = pc.list_value_length(lists).take(pa.array(rng.integers(0, len(lists), count)))
    is_missing = np.append(np.asarray(lengths.is_null()), False)
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths.fill_null(0)))])
    elements = _values(lists.flatten(), int(offsets[-1]), exponent, rng, missing_share=0.0)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32(), mask=is_missing), elements)


def _values(
    known: pa.Array, count: int, exponent: float, rng: np.random.Generator, *, missing_share: float
) -> pa.Array:
    if not count:
        return known.slice(0, 0)
    counted = known.value_counts()
    ranking = np.argsort(-np.asarray(counted.field("counts")), kind="stable")
    distinct = counted.field("values").take(pa.array(ranking))
    drawn = distinct.take(pa.array(zipf(rng, len(distinct), count, exponent)))
    is_unseen = pa.array(rng.random(count) < UNSEEN_SHARE)
    unseen = _unseen(distinct, count, rng)
    if unseen is not None:
        drawn = pc.if_else(is_unseen, unseen, drawn)
    is_missing = pa.array(rng.random(count) < missing_share)
    return pc.if_else(is_missing, pa.scalar(None, known.type), drawn)


def _unseen(distinct: pa.Array, count: int, rng: np.random.Generator) -> pa.Array | None:
    """Return integers above the known maximum or strings longer than all known ones. Return None for other types."""
    kind, numbers = distinct.type, rng.integers(0, 1 << 31, count)
    if pa.types.is_integer(kind) and distinct.null_count < len(distinct):
        dtype, highest = np.dtype(kind.to_pandas_dtype()), pc.max(distinct).as_py()
        if room := int(np.iinfo(dtype).max) - highest:
            return pa.array((numbers % room).astype(dtype) + dtype.type(highest + 1), kind)
    if is_text(kind):
        longest = pc.max(pc.utf8_length(distinct)).as_py() or 0
        return pa.array([str(number).zfill(longest + 1) for number in numbers.tolist()], kind)
    return None


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Serialized requests, whose ids are their positions in `messages`. `draws` contains the row numbers of each
    request, with shape [num_requests, batch_size].
    """

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
    """Sample a table's rows and serialize them as requests. The table must have one chunk and only the model's columns.

    Args:
        count: desired number of requests, which is reduced if they would need too much memory or time.
        skew: see `draw`.
        num_takers: number of client processes that share the requests. Each gets at least one, regardless of memory.
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
            raise ServingError(
                f"the load generator encoded request {number} differently from the client. Please report this bug."
            )


def draw(rng: np.random.Generator, num_rows: int, shape: tuple[int, int], skew: float = 0.0) -> npt.NDArray[np.int64]:
    """Sample row numbers as an int64 array of the given shape, uniformly or with a skew.

    A skew of 0 draws every row once before any row is repeated. With a positive value, rows are ranked at random, and
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
    """Whether a large request can be split up. It cannot if lists are padded to the maximum length in their batch."""
    return all(-1 not in tensor.dims for tensor in (*schema.inputs, *schema.optional_inputs))


def _parts(entry: Any, content: bytes, count: int) -> list[bytes]:
    """Split the serialized content of a tensor into `count` parts with equal numbers of elements. Each string has a
    four-byte length prefix.
    """
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
    """Split a request into `count` requests of `batch_size` rows, numbered from `first`.

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
