"""Generate rows from the known values of each column: popular values often, and a few unseen values.

Held-out rows repeat known combinations; generated rows contain combinations that no cache can have stored. Columns are
drawn independently of each other. A column's values are ranked by their frequency in the known rows, and drawn from a
Zipf distribution over this rank.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankline.serving.client import ModelSchema
from rankline.workflows.schema.arrow_types import holds_lists, is_text

UNSEEN_SHARE = 0.01
"""Fraction of integers and strings with values that no known row has."""
MISSING_SHARE = 0.01
"""Fraction of missing values in columns with a mask, in addition to values missing in the known rows."""


def generate(
    known: pa.Table, schema: ModelSchema, num_rows: int, exponent: float, rng: np.random.Generator
) -> pa.Table:
    """Generate rows.

    Args:
        known: rows whose values are used: at least one, in one chunk, with only columns that the model takes.
        schema: schema of the model, which determines the columns that may have missing values.
        exponent: exponent of the Zipf distribution; 0 for a uniform distribution.
    """
    with_mask = {column.name for column in schema.columns if column.mask is not None}
    return pa.table(
        {
            name: _column(known[name].combine_chunks(), num_rows, exponent, rng, may_lack=name in with_mask)
            for name in known.column_names
        }
    )


def zipf(rng: np.random.Generator, num_ranks: int, shape: int | tuple[int, ...], exponent: float) -> Any:
    """Draw Zipf-distributed ranks from 0, as an int64 array of the given shape."""
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
    """Return values above the highest or longer than the longest known value; None for other types such as floats."""
    kind, numbers = distinct.type, rng.integers(0, 1 << 31, count)
    if pa.types.is_integer(kind) and distinct.null_count < len(distinct):
        dtype, highest = np.dtype(kind.to_pandas_dtype()), pc.max(distinct).as_py()
        if room := int(np.iinfo(dtype).max) - highest:
            return pa.array((numbers % room).astype(dtype) + dtype.type(highest + 1), kind)
    if is_text(kind):
        longest = pc.max(pc.utf8_length(distinct)).as_py() or 0
        return pa.array([str(number).zfill(longest + 1) for number in numbers.tolist()], kind)
    return None
