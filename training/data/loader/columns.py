"""Operations on numeric columns stored as NumPy arrays: zero-copy conversion from Arrow, concatenation, gathering and
slicing.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankline.training.data.loader.gather import SLACK, gather_lists, num_values
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from rankline.workflows.schema.ragged import Ragged, empty, flat_of_arrow, offsets_of

Array = npt.NDArray[Any]


Column = Array | Ragged
"""Shape (N,); (N, W) if every row has a list of W values; `Ragged` for lists of any length."""


def arrow_type(feature: Feature) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(feature.dtype))


def arrow_schema(features: Iterable[Feature]) -> pa.Schema:
    return pa.schema((f.name, pa.list_(arrow_type(f)) if f.is_list else arrow_type(f)) for f in features)


def null_fills(spec: FeatureSpec) -> dict[str, float]:
    """Return the value that replaces nulls in each column that may have them.

    With several labels a row may lack some, and NaN marks a missing label.
    """
    filled = {feature.name: feature.null_fill for feature in spec.features if feature.null_fill is not None}
    return filled | {label.name: math.nan for label in spec.labels if len(spec.labels) > 1}


def is_numeric(kind: pa.DataType) -> bool:
    """Whether the values are numbers, in lists of any depth."""
    while is_any_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_nested(kind: pa.DataType) -> bool:
    """Whether a row has a list of lists."""
    return is_any_list(kind) and is_any_list(kind.value_type)


def is_any_list(kind: pa.DataType) -> bool:
    return _is_list(kind) or bool(pa.types.is_fixed_size_list(kind))


def num_nulls(column: pa.ChunkedArray) -> int:
    """Return the number of null rows plus null list elements."""
    count, chunks = int(column.null_count), column.chunks
    while chunks and is_any_list(chunks[0].type):
        chunks = [chunk.flatten() for chunk in chunks]
        count += sum(int(chunk.null_count) for chunk in chunks)
    return count


def fill_nulls(column: pa.ChunkedArray, value: float) -> pa.ChunkedArray:
    """Replace null values and null list elements with `value`, and null lists with empty lists."""
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        if column.null_count:
            raise pa.ArrowInvalid("a null in a fixed-size list column cannot be replaced by an empty list")
        filled = pc.fill_null(column.combine_chunks().flatten(), pa.scalar(value).cast(kind.value_type))
        return pa.chunked_array([pa.FixedSizeListArray.from_arrays(filled, kind.list_size)])
    if not _is_list(kind):
        return pc.fill_null(column, pa.scalar(value).cast(kind))
    lists = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    values = pc.fill_null(lists.flatten(), pa.scalar(value).cast(kind.value_type))
    return pa.chunked_array([pa.LargeListArray.from_arrays(offsets_of(lengths), values)])


def from_arrow(column: pa.ChunkedArray) -> Column:
    """Convert an Arrow column without nulls to arrays, copying it only if it has several chunks."""
    return concatenate([_from_array(chunk) for chunk in column.iterchunks()])


def num_rows(column: Column) -> int:
    return len(column.offsets) - 1 if isinstance(column, Ragged) else len(column)


def lengths(column: Column) -> npt.NDArray[np.int32]:
    """Return the number of values in each row, as an array of shape (N,)."""
    if isinstance(column, Ragged):
        return column.lengths
    return np.full(len(column), math.prod(column.shape[1:]), np.int32)


def concatenate(columns: Sequence[Column], dtype: np.dtype[Any] | None = None) -> Column:
    """Concatenate the rows of one or more columns of the same kind.

    A single column that already has `dtype` is returned as is. If `dtype` is None, the result has the smallest type
    that can represent the values of all columns.
    """
    dtype = dtype or np.result_type(*map(value_dtype, columns))
    if len(columns) == 1:
        return cast(columns[0], dtype)
    if not isinstance(columns[0], Ragged):
        flat = [column for column in columns if not isinstance(column, Ragged)]
        out = empty((sum(map(len, flat)), *flat[0].shape[1:]), dtype)
        return np.concatenate(flat, out=out, casting="unsafe")
    lists = [column for column in columns if isinstance(column, Ragged)]
    size = sum(len(column.values) for column in lists)
    values = empty((size,), dtype)
    np.concatenate([column.values for column in lists], out=values, casting="unsafe")
    offsets = empty((sum(map(num_rows, lists)) + 1,), np.dtype(np.int32 if size < 2**31 else np.int64))
    offsets[0] = row = 0
    for column in lists:
        end = row + num_rows(column)
        np.add(column.offsets[1:], offsets[row], out=offsets[row + 1 : end + 1], casting="same_kind")
        row = end
    return Ragged(values=values, offsets=offsets)


def take(column: Column, rows: npt.NDArray[np.intp], dtype: np.dtype[Any]) -> Column:
    """Copy the rows at the indices `rows`, of shape (N,), to a new column of type `dtype`. Indices must be in range."""
    if not isinstance(column, Ragged):
        out = empty((len(rows), *column.shape[1:]), dtype)
        if dtype == column.dtype:  # with "clip" NumPy writes to `out` directly; with "raise" it uses a buffer
            return np.take(column, rows, axis=0, out=out, mode="clip")
        out[...] = np.take(column, rows, axis=0, mode="clip")
        return out
    values = empty((num_values(column.offsets, rows) + SLACK,), dtype)
    offsets = empty((len(rows) + 1,), column.offsets.dtype)
    gather_lists(column.values, column.offsets, rows, values, offsets)
    return Ragged(values=values[:-SLACK], offsets=offsets)


def narrow_dtype(dtype: np.dtype[Any], low: int, high: int) -> np.dtype[Any]:
    """Return the smallest signed integer type for the range from `low` to `high`, or `dtype` if none is smaller.

    Shuffling reads rows at random, so its speed depends on how much of the data fits into the CPU caches: one-byte ids
    are a third faster than eight-byte ids.
    """
    if dtype.kind == "i":
        for kind in (np.int8, np.int16, np.int32):
            limits = np.iinfo(kind)
            if limits.min <= low and high <= limits.max and limits.bits < 8 * dtype.itemsize:
                return np.dtype(kind)
    return dtype


def slice_rows(column: Column, start: int, stop: int) -> Column:
    """Slice rows from `start` to `stop` without a copy."""
    if not isinstance(column, Ragged):
        return column[start:stop]
    offsets = column.offsets[start : stop + 1]
    first = offsets[0]
    return Ragged(values=column.values[first : offsets[-1]], offsets=offsets - first if first else offsets)


def cast(column: Column, dtype: np.dtype[Any]) -> Column:
    """Convert the values to `dtype`, or return the column unchanged if it already has that type."""
    values = column.values if isinstance(column, Ragged) else column
    if values.dtype == dtype:
        return column
    out = empty(values.shape, dtype)
    out[...] = values
    return Ragged(values=out, offsets=column.offsets) if isinstance(column, Ragged) else out


def lost_by_cast(column: Column, dtype: np.dtype[Any]) -> Any:
    """Return a value that would change if cast to the integer type `dtype`, or None if there is no such value."""
    values = column.values if isinstance(column, Ragged) else column
    if values.dtype.kind not in "fu" or values.dtype.itemsize < 4:
        return None
    with np.errstate(invalid="ignore"):  # NaN is one of the values to find
        changed = values.astype(dtype).astype(values.dtype) != values
    if values.dtype.kind == "u":
        changed |= values > np.iinfo(dtype).max
    return values[changed][0] if changed.any() else None


def not_finite(column: Column) -> Any:
    values = column.values if isinstance(column, Ragged) else column
    is_finite = np.isfinite(values)
    return None if is_finite.all() else values[~is_finite][0]


def value_dtype(column: Column) -> np.dtype[Any]:
    return (column.values if isinstance(column, Ragged) else column).dtype


def min_max(column: Column) -> tuple[Any, Any]:
    """Return the minimum and maximum values, or (0, 0) for an empty column."""
    values = column.values if isinstance(column, Ragged) else column.reshape(-1)
    found = pc.min_max(pa.array(values)).as_py()
    return (found["min"], found["max"]) if found["min"] is not None else (0, 0)


def _from_array(array: pa.Array) -> Column:
    kind = array.type
    if is_nested(kind):
        return _flat_lists(array)
    if pa.types.is_fixed_size_list(kind):
        return flat_of_arrow(array.flatten()).reshape(-1, kind.list_size)
    if not _is_list(kind):
        return flat_of_arrow(array)
    if _is_view(kind):  # lists may be in any order; pyarrow 25 casts a view to an array without its last offset
        offsets = offsets_of(pc.list_value_length(array).to_numpy())
        array = pa.LargeListArray.from_arrays(pa.array(offsets), array.flatten())
    return Ragged.of_arrow(array)


def _flat_lists(array: pa.Array) -> Ragged:
    """Join the inner lists of each row, so that a row is one list of all its values."""
    inner = _from_array(array.flatten())
    size = array.type.list_size if pa.types.is_fixed_size_list(array.type) else None
    lengths = np.full(len(array), size) if size is not None else pc.list_value_length(array).to_numpy()
    rows = offsets_of(lengths)
    if isinstance(inner, Ragged):
        return Ragged(values=inner.values, offsets=inner.offsets[rows])
    return Ragged(values=inner.reshape(-1), offsets=rows * math.prod(inner.shape[1:]))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or _is_view(kind))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))
