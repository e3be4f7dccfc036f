"""Categories: vocabulary lookups, hash buckets and hexadecimal ids."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rankline.workflows.compiler.expressions import Columns, Expression, apply, cast, column_of, find, unsupported
from rankline.workflows.core.errors import LoweringError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.io.vocabulary_files import read_vocabulary
from rankline.workflows.nvt.kernels.categories import FIRST_UNSEEN_ID, NULL_ID
from rankline.workflows.nvt.operators import HashedCategorify, StableHashBucket, StableHashedCross
from rankline.workflows.plan.columns import Vector, is_missing, is_string, take, take_or_missing
from rankline.workflows.plan.steps import Bucket, HexToInt, WithoutEmpty


def lower_categorify(op: ops.Categorify, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Look up values in the vocabulary: ids of known values follow those of unseen values, by frequency.

    A missing list element is an unseen value, as in NVTabular. A missing integer is null even if the fitted column had
    no missing values, in which case NVTabular fails.

    Raises:
        LoweringError: the operator uses hash buckets, which NVTabular derives from the row's position on a CPU, or a
            single table for all columns, in which null and unseen values get the ids of known ones.
    """
    if op.num_buckets and not isinstance(op, HashedCategorify):
        raise unsupported(
            op,
            "num_buckets=…",
            "hashes the row's position together with the value on a CPU, so served ids cannot match training. "
            "Use rankline.workflows.nvt.operators.HashedCategorify.",
        )
    if op.single_table:
        raise unsupported(
            op, "single_table=True", "gives null and unseen values the ids of known ones on a CPU. Leave it out."
        )
    lowered = {}
    for name, group in op.column_mapping(selector).items():
        storage = op.storage_name.get(name, name) if op.encode_type == "joint" or len(group) > 1 else name
        lowered[name] = _encoded(op, storage, [columns[part] for part in group], group)
    return lowered


def _encoded(op: ops.Categorify, storage: str, columns: list[Expression], names: list[str]) -> Expression:
    what = f"{type(op).__name__} on {', '.join(map(repr, names))}"
    num_unseen = op.buckets_of(names[0]) if isinstance(op, HashedCategorify) else 1
    if len(columns) > 1 and any(column.is_list for column in columns):
        raise LoweringError(f"{what}: lists cannot be encoded together with other columns.")
    keyed = names if len(names) > 1 else [storage]
    vocabulary = read_vocabulary(op.categories[storage], keyed)
    parts = [column_of(vocabulary[name]) for name in keyed]
    keys = [part for part in parts if isinstance(part, Vector)]
    if len(keys) < len(parts):
        raise LoweringError(f"{what}: the vocabulary holds lists. Prepare the data again.")
    null = np.logical_and.reduce([is_missing(part) for part in keys])
    known, ids_of_known = np.flatnonzero(~null), _ids(vocabulary, num_unseen)[~null]
    if len(keys) > 1:
        # A key with all columns missing is null; a key with some columns missing is an ordinary combination.
        keys = [take_or_missing(part, np.append(known, -1)) for part in keys]
        ids_of_known = np.append(ids_of_known, NULL_ID)
    else:
        keys = [take(keys[0], known)]
        # Cast the request to the vocabulary's dtype before comparing.
        columns = columns if columns[0].is_string or is_string(keys[0]) else [cast(columns[0], keys[0].values.dtype)]
    found = find(columns, keys, what=what, num_unknown=num_unseen)
    ids = np.append(ids_of_known, NULL_ID)[found.positions]
    ids[:num_unseen] = FIRST_UNSEEN_ID + np.arange(num_unseen)
    if columns[0].is_list and not isinstance(op, HashedCategorify):
        ids[found.missing_row] = FIRST_UNSEEN_ID
    return found.look_up_table(Vector(ids.astype(op.output_dtype)))


def _ids(vocabulary: pd.DataFrame, num_unseen: int) -> NDArray[np.int64]:
    """Return the ids of a vocabulary's rows: its index, or numbers from the first free id if it was not saved."""
    first = FIRST_UNSEEN_ID + num_unseen
    ids: NDArray[np.int64] = vocabulary.index.to_numpy()
    return ids + first if len(ids) and ids[0] < first else ids


def lower_stable_hash_bucket(op: StableHashBucket, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    return {name: apply(Bucket(num_buckets=op.buckets_of(name)), columns[name]) for name in selector.names}


def lower_empty_to_null(op: Any, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    if numbers := [name for name in selector.names if not columns[name].is_string]:
        raise LoweringError(f"{type(op).__name__} on {numbers}: they hold numbers, expected strings.")
    return {name: apply(WithoutEmpty(), columns[name]) for name in selector.names}


def lower_hex_to_int(op: Any, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    if numbers := [name for name in selector.names if not columns[name].is_string]:
        raise LoweringError(f"{type(op).__name__} on {numbers}: they hold numbers, expected hexadecimal strings.")
    return {name: apply(HexToInt(), columns[name]) for name in selector.names}


def lower_stable_hashed_cross(op: StableHashedCross, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    lowered = {}
    for cross in op.crosses(selector):
        if lists := [name for name in cross if columns[name].is_list]:
            raise LoweringError(f"StableHashedCross on {lists}: they hold lists, expected one value per row.")
        step = Bucket(num_buckets=op.buckets_of(cross))
        lowered["_X_".join(cross)] = apply(step, *(columns[name] for name in cross))
    return lowered
