"""How each NVTabular operator becomes part of a `TransformPlan`: one function, one line in LOWERINGS.

While a graph is compiled, a column is either a raw `Input` or a `Lookup`: a key index on one input, and the value that
each of its rows leads to. An operator on a `Lookup` is applied to those values once, at compile time, so that joins and
list encodings cost nothing per request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from serving.plan import KeyIndex
from workflows.categories import FIRST_UNSEEN_ID, NULL_ID
from workflows.errors import LoweringError
from workflows.operators import HashedCategorify, NullToEmptyList
from workflows.upstream import ops

from merlin.dag.ops.concat_columns import ConcatColumns  # isort: skip
from merlin.dag.ops.selection import SelectionOp  # isort: skip
from merlin.dag.ops.subset_columns import SubsetColumns  # isort: skip


@dataclass(frozen=True)
class Input:
    """A raw column of the request."""

    name: str
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Lookup:
    """A column that depends on one key.

    Attributes:
        index: finds the row of a key.
        values: one entry per row: numbers, strings or lists, null where the column is missing.
    """

    index: KeyIndex
    values: pa.Array


Expression = Input | Lookup
Columns = Mapping[str, Expression]
Lowering = Callable[[Any, Columns], Columns]


def lower_unchanged(_op: Any, columns: Columns) -> Columns:
    """Selections and concatenations only name columns."""
    return columns


def lower_null_to_empty_list(_op: NullToEmptyList, columns: Columns) -> Columns:
    """Null lists become empty ones."""
    lowered = {}
    for name, column in columns.items():
        if not isinstance(column, Lookup) or not pa.types.is_list(column.values.type):
            raise LoweringError(f"NullToEmptyList on {name!r}: expected a joined list column.")
        empty = pa.scalar([], column.values.type)
        lowered[name] = Lookup(column.index, pc.fill_null(column.values, empty))
    return lowered


def lower_join_external(op: ops.JoinExternal, columns: Columns) -> Columns:
    """A left join on one integer key becomes a lookup per joined column; row 0 is the unknown key."""
    keys, external_keys = _as_list(op.on), _as_list(op.on_ext)
    if op.how != "left" or len(keys) != 1:
        raise LoweringError(f"JoinExternal(on={keys}, how={op.how!r}): expected a left join on one column.")
    key = columns[keys[0]]
    table = op._ext
    external_key = table[external_keys[0]]
    if not isinstance(key, Input) or not np.issubdtype(external_key.dtype, np.integer):
        raise LoweringError(f"JoinExternal on {keys[0]!r}: expected a raw integer column as the key.")
    if external_key.duplicated().any():
        raise LoweringError(f"JoinExternal on {keys[0]!r}: keys are not unique, so a request row could become several.")
    index = KeyIndex.build(key.name, external_key.to_numpy())
    joined: dict[str, Expression] = dict(columns)
    for name in table.columns:
        if name not in external_keys:
            values = pa.array(table[name], from_pandas=True)
            joined[name] = Lookup(index, pa.concat_arrays([pa.nulls(1, values.type), values]))
    return joined


def lower_categorify(op: ops.Categorify, columns: Columns) -> Columns:
    """Vocabulary lookup; unseen values get the id after null, known ones theirs by frequency.

    Raises:
        LoweringError: joint or combined encoding, or hash buckets, which NVTabular ties to the row's position on a CPU.
    """
    if op.num_buckets and not isinstance(op, HashedCategorify):
        raise LoweringError(
            "Categorify(num_buckets=…) hashes the row's position together with the value on a CPU, so served ids "
            "cannot match training. Use workflows.operators.HashedCategorify."
        )
    if op.encode_type != "joint" or op.single_table or any(name != op.storage_name.get(name, name) for name in columns):
        raise LoweringError("Categorify over groups of columns or with single_table has no compiled form.")
    num_unseen = op.num_buckets or 1
    return {name: _encode(column, _vocabulary(op, name), num_unseen) for name, column in columns.items()}


def _encode(column: Expression, vocabulary: pa.Array, num_unseen: int) -> Lookup:
    if isinstance(column, Input):
        if not (np.issubdtype(column.dtype, np.integer) and pa.types.is_integer(vocabulary.type)):
            raise LoweringError(
                f"Categorify on {column.name!r} ({column.dtype}, vocabulary {vocabulary.type}): expected integer keys."
            )
        index = KeyIndex.build(column.name, vocabulary.to_numpy(), num_unseen)
        return Lookup(index, pa.array(np.arange(num_unseen + len(vocabulary)) + FIRST_UNSEEN_ID))
    if num_unseen > 1:
        raise LoweringError("HashedCategorify expects a raw integer column.")
    if pa.types.is_list(column.values.type):
        ids = _ids(column.values.flatten(), vocabulary)
        return Lookup(column.index, pa.ListArray.from_arrays(_offsets(column.values), ids))
    ids = pc.if_else(column.values.is_null(), NULL_ID, _ids(column.values, vocabulary))
    return Lookup(column.index, ids)


def _ids(values: pa.Array, vocabulary: pa.Array) -> pa.Array:
    position = pc.index_in(values, value_set=vocabulary)
    return pc.fill_null(pc.add(position.cast(pa.int64()), FIRST_UNSEEN_ID + 1), FIRST_UNSEEN_ID)


def _offsets(lists: pa.ListArray) -> pa.Array:
    """Offsets into `lists.flatten()`, which leaves null lists out."""
    if lists.null_count:
        raise LoweringError("Categorify on a list column with missing lists: put NullToEmptyList before it.")
    lengths = pc.list_value_length(lists).to_numpy()
    return pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())


def _vocabulary(op: ops.Categorify, name: str) -> pa.Array:
    path = op.categories[name]
    return pq.read_table(Path(path), columns=[name])[name].combine_chunks()


def _as_list(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


LOWERINGS: dict[type, Lowering] = {
    SelectionOp: lower_unchanged,
    SubsetColumns: lower_unchanged,
    ConcatColumns: lower_unchanged,
    NullToEmptyList: lower_null_to_empty_list,
    ops.JoinExternal: lower_join_external,
    ops.Categorify: lower_categorify,
    HashedCategorify: lower_categorify,
}
