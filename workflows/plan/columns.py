"""Run-time representation of columns of values or lists, with validity masks for missing values."""

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankline.workflows.nvt.keys import Values
from rankline.workflows.schema.ragged import Padded, Ragged, offsets_of, pad

if TYPE_CHECKING:
    import pandas as pd

Mask: TypeAlias = "NDArray[np.bool_] | None"


class Vector(NamedTuple):
    """A column with one value per row."""

    values: Values  # numbers [num_rows], or strings as a UTF-8 `LargeBinaryArray`; arbitrary where missing
    valid: Mask = None  # [num_rows], None if no value is missing, and for floats, where NaN marks missing ones


class Lists(NamedTuple):
    """A column with one list per row."""

    elements: Vector  # elements of all lists, concatenated
    offsets: NDArray[np.int64]  # int64 [num_rows + 1], start and end of each list in `elements`
    valid: Mask = None  # bool [num_rows], None if no list is missing; missing lists have no elements
    width: int | None = None  # upper bound of the list lengths, if known


AnyColumn: TypeAlias = Vector | Lists


def mask_of(valid: NDArray[np.bool_]) -> Mask:
    return None if valid.all() else valid


def vector_of(values: NDArray[Any] | pa.LargeBinaryArray, valid: Mask = None) -> Vector:
    """Convert an Arrow string array or a NumPy array to a `Vector`. NumPy arrays contain numbers, or `bytes`, `str` and
    None for strings.

    Raises pyarrow.ArrowException or TypeError if an object is not a string.
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
    """Convert a pandas column of numbers or lists of numbers, without missing values, to a `Vector` or `Lists`."""
    if not is_list:
        return Vector(rows.to_numpy())
    lists = Ragged.of_rows(rows)
    return Lists(Vector(lists.values), lists.offsets)


def lists_of(padded: Padded, valid: Mask = None) -> Lists:
    """Convert padded lists to ragged `Lists`, in which missing lists are empty."""
    valid = None if valid is None else mask_of(valid)
    if valid is not None:
        padded = Padded(padded.values, np.where(valid, padded.lengths, 0))
    lists = padded.ragged()
    return Lists(vector_of(lists.values), lists.offsets, valid)


def from_arrow(array: pa.Array) -> Any:
    """Convert an Arrow array to a `Vector`, or to `Lists` if it contains lists.

    Raises:
        ValueError: the array contains neither numbers, strings nor lists of them.
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
    raise ValueError(f"type {kind} is not supported, expected numbers, strings or lists of these")


def _validity(array: pa.Array) -> Mask:
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def is_missing(column: AnyColumn) -> NDArray[np.bool_]:
    if column.valid is not None:
        return ~column.valid
    if isinstance(column, Vector) and is_float(column):
        missing: NDArray[np.bool_] = np.isnan(column.values)
        return missing
    return np.zeros(num_rows_of(column), dtype=np.bool_)


def is_string(vector: Vector) -> bool:
    return isinstance(vector.values, pa.Array)


def is_float(vector: Vector) -> bool:
    """Whether a vector contains floats, in which NaN marks missing values."""
    return not is_string(vector) and vector.values.dtype.kind == "f"


def num_rows_of(column: AnyColumn) -> int:
    return len(column.offsets) - 1 if isinstance(column, Lists) else len(column.values)


def take(column: AnyColumn, rows: NDArray[Any]) -> Any:
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
    """Return the rows of a column that have the given row numbers. Negative numbers yield missing values."""
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
    """Pad lists of numbers to a common width. No list may be missing."""
    lengths = np.diff(lists.offsets).astype(np.int32)
    width = max(int(lengths.max(initial=0)) if lists.width is None else lists.width, 1)
    return Padded(pad(lists.elements.values, lengths, width), lengths)
