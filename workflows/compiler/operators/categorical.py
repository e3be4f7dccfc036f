"""Lowerings of categorical operators: vocabulary lookups, hash buckets and hexadecimal ids."""

from typing import Any

import numpy as np

from rankline.workflows.compiler.expressions import (
    Columns,
    Expression,
    apply,
    cast,
    check_numbers,
    column_of,
    find,
    unsupported,
)
from rankline.workflows.core.errors import LoweringError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.io.vocabulary_files import read_vocabulary
from rankline.workflows.nvt.operators import HashedCategorify, KnownIds, StableHashBucket, StableHashedCross
from rankline.workflows.nvt.operators.categorify import ids_of_rows
from rankline.workflows.plan.columns import Vector, is_missing, is_string, take, take_or_missing
from rankline.workflows.plan.steps import Arithmetic, Bucket, Clip, Fill, HexToInt, WithoutEmpty
from rankline.workflows.schema.feature_spec import FIRST_UNSEEN_ID, NULL_ID


def lower_categorify(op: ops.Categorify, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Map values to vocabulary ids: first reserved ids for unseen values, then known values by descending frequency.

    A missing list element is an unseen value, as in NVTabular. A missing integer is null even if the fitted column had
    no missing values, in which case NVTabular fails.
    """
    if op.num_buckets and not isinstance(op, HashedCategorify):
        raise unsupported(
            op,
            "num_buckets=…",
            "includes the row position in the hash on a CPU, so ids at serving time cannot match those from "
            "training. Use rankline.workflows.nvt.operators.HashedCategorify.",
        )
    if op.single_table:
        raise unsupported(
            op,
            "single_table=True",
            "maps null and unseen values to the ids of known values on a CPU. Remove this option.",
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
        raise LoweringError(
            f"{what}: list columns cannot be encoded together with other columns. Encode each list column alone."
        )
    keyed = names if len(names) > 1 else [storage]
    vocabulary = read_vocabulary(op.categories[storage], keyed)
    parts = [column_of(vocabulary[name]) for name in keyed]
    keys = [part for part in parts if isinstance(part, Vector)]
    if len(keys) < len(parts):
        raise LoweringError(f"{what}: the vocabulary contains lists, expected single values. Prepare the data again.")
    null = np.logical_and.reduce([is_missing(part) for part in keys])
    known, ids_of_known = np.flatnonzero(~null), ids_of_rows(vocabulary, num_unseen)[~null]
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


def lower_stable_hash_bucket(op: StableHashBucket, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    return {name: apply(Bucket(num_buckets=op.buckets_of(name)), columns[name]) for name in selector.names}


def lower_empty_to_null(op: Any, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    if numbers := [name for name in selector.names if not columns[name].is_string]:
        raise LoweringError(f"{type(op).__name__} on {numbers}: these columns contain numbers, expected strings.")
    return {name: apply(WithoutEmpty(), columns[name]) for name in selector.names}


def lower_hex_to_int(op: Any, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    if numbers := [name for name in selector.names if not columns[name].is_string]:
        raise LoweringError(
            f"{type(op).__name__} on {numbers}: these columns contain numbers, expected hexadecimal strings."
        )
    return {name: apply(HexToInt(), columns[name]) for name in selector.names}


def lower_stable_hashed_cross(op: StableHashedCross, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    lowered = {}
    for cross in op.crosses(selector):
        if lists := [name for name in cross if columns[name].is_list]:
            raise LoweringError(
                f"StableHashedCross on {lists}: these columns contain lists, expected one value per row."
            )
        step = Bucket(num_buckets=op.buckets_of(cross))
        lowered["_X_".join(cross)] = apply(step, *(columns[name] for name in cross))
    return lowered


def lower_known_ids(op: KnownIds, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Replace missing, negative and out-of-range ids with 0."""
    lowered = {}
    for name in selector.names:
        check_numbers(op, name, columns[name], lists=True)
        size = op.sizes[name]
        filled = cast(apply(Fill(value=0), columns[name]), "int64")
        within = apply(Clip(lowest=0, highest=size), filled)
        lowered[name] = apply(Arithmetic(function="remainder", operand=size), within)
    return lowered
