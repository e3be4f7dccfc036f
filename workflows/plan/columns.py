"""Columns while a plan runs: a vector of values, or lists of them, each with its missing values marked."""

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankline.workflows.nvt.kernels.hashing import Values
from rankline.workflows.schema.ragged import Padded, Ragged, offsets_of, pad

if TYPE_CHECKING:
    import pandas as pd

Mask: TypeAlias = "NDArray[np.bool_] | None"


class Vector(NamedTuple):
    """One value per row.

    Attributes:
        values: numbers [num_rows], or strings as a `LargeBinaryArray` of UTF-8; anything where missing.
        valid: bool [num_rows], None where nothing is missing. Floats have none: NaN is missing, as in pandas.
    """

    values: Values
    valid: Mask = None


class Lists(NamedTuple):
    """One list per row.

    Attributes:
        elements: the values of all lists, one after the other.
        offsets: int64 [num_rows + 1], where each list begins and ends in `elements`.
        valid: bool [num_rows], None where no list is missing; missing lists have no elements.
        width: no list is longer, where that is known.
    """

    elements: Vector
    offsets: NDArray[np.int64]
    valid: Mask = None
    width: int | None = None


AnyColumn: TypeAlias = Vector | Lists


def mask_of(valid: NDArray[np.bool_]) -> Mask:
    return None if valid.all() else valid


def vector_of(values: NDArray[Any] | pa.LargeBinaryArray, valid: Mask = None) -> Vector:
    """Numbers, or strings of Arrow's or as objects (`bytes`, `str`, None where missing), as a vector.

    Raises:
        pyarrow.ArrowException, TypeError: an object is not a string.
    """
    if isinstance(values, pa.Array) or values.dtype.kind == "O":
        is_arrow = isinstance(values, pa.Array)
        strings: Vector = from_arrow(values if is_arrow else pa.array(values, pa.large_binary(), from_pandas=True))
        if valid is None:
            return strings
        return Vector(strings.values, mask_of(valid & ~is_missing(strings)))
    if valid is None or (valid := mask_of(valid)) is None:
        return Vector(values)
    if values.dtype.kind == "f":
        return Vector(np.where(valid, values, values.dtype.type(np.nan)))
    return Vector(values, valid)


def column_of_rows(rows: "pd.Series[Any]", *, is_list: bool) -> AnyColumn:
    """Convert numbers of pandas, or lists of numbers, none of them missing."""
    if not is_list:
        return Vector(rows.to_numpy())
    lists = Ragged.of_rows(rows)
    return Lists(Vector(lists.values), lists.offsets)


def lists_of(padded: Padded, valid: Mask = None) -> Lists:
    """Padded lists as flat ones; what a missing list holds is left out."""
    valid = None if valid is None else mask_of(valid)
    if valid is not None:
        padded = Padded(padded.values, np.where(valid, padded.lengths, 0))
    lists = padded.ragged()
    return Lists(vector_of(lists.values), lists.offsets, valid)


def from_arrow(array: pa.Array) -> Any:
    """An Arrow array as a vector, or as lists.

    Raises:
        ValueError: neither numbers, strings nor lists of them.
    """
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return Lists(from_arrow(array.flatten()), offsets_of(lengths), _validity(array))
    if pa.types.is_dictionary(kind):
        return from_arrow(array.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind):
        array = array.cast(pa.large_binary())
    if pa.types.is_large_binary(array.type):
        valid = _validity(array)
        return Vector(array if valid is None else array.fill_null(b""), valid)
    if pa.types.is_floating(kind):
        return Vector(array.to_numpy(zero_copy_only=False))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        valid = _validity(array)
        filled = array if valid is None else array.fill_null(False if pa.types.is_boolean(kind) else 0)
        return Vector(filled.to_numpy(zero_copy_only=False), valid)
    raise ValueError(f"{kind} is neither numbers, strings nor lists of them")


def _validity(array: pa.Array) -> Mask:
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def is_missing(column: AnyColumn) -> NDArray[np.bool_]:
    """Which rows are missing: bool [num_rows]."""
    if column.valid is not None:
        return ~column.valid
    if isinstance(column, Vector) and is_float(column):
        missing: NDArray[np.bool_] = np.isnan(column.values)
        return missing
    return np.zeros(num_rows_of(column), dtype=np.bool_)


def is_string(vector: Vector) -> bool:
    return isinstance(vector.values, pa.Array)


def is_float(vector: Vector) -> bool:
    """Floats, which mark what is missing by NaN."""
    return not is_string(vector) and vector.values.dtype.kind == "f"


def num_rows_of(column: AnyColumn) -> int:
    return len(column.offsets) - 1 if isinstance(column, Lists) else len(column.values)


def take(column: AnyColumn, rows: NDArray[Any]) -> Any:
    """The column at some rows."""
    valid = None if column.valid is None else mask_of(column.valid.take(rows))
    if isinstance(column, Vector):
        return Vector(column.values.take(pa.array(rows) if is_string(column) else rows), valid)
    lengths = np.diff(column.offsets).take(rows)
    offsets = offsets_of(lengths)
    elements = np.repeat(column.offsets[:-1].take(rows) - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Lists(take(column.elements, elements), offsets, valid, column.width)


def with_one_more(vector: Vector, value: Any) -> Vector:
    values: Any = vector.values
    if is_string(vector):
        values = pa.concat_arrays([values, pa.array([value], pa.large_binary())])
    else:
        values = np.append(values, values.dtype.type(value))
    return Vector(values, None if vector.valid is None else np.append(vector.valid, True))


def take_or_missing(column: AnyColumn, rows: NDArray[Any]) -> Any:
    """The column at some rows; missing where the row is negative."""
    found = rows >= 0
    if isinstance(column, Lists):
        lists: Lists = take(column, rows[found])
        lengths, valid = np.zeros(len(rows), dtype=np.int64), found.copy()
        lengths[found], valid[found] = np.diff(lists.offsets), ~is_missing(lists)
        return Lists(lists.elements, offsets_of(lengths), mask_of(valid), column.width)
    nothing = b"" if is_string(column) else np.nan if is_float(column) else 0
    present: Vector = take(with_one_more(column, nothing), np.where(found, rows, len(column.values)))
    if is_float(column):
        return present
    return Vector(present.values, mask_of(found if present.valid is None else found & present.valid))


def padded_of(lists: Lists) -> Padded:
    """Flat lists of numbers, none of them missing, as padded ones."""
    lengths = np.diff(lists.offsets).astype(np.int32)
    width = max(int(lengths.max(initial=0)) if lists.width is None else lists.width, 1)
    return Padded(pad(lists.elements.values, lengths, width), lengths)
