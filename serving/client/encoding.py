"""Convert a column to input tensors: check types, mark missing values, pad lists.

Integers of any width are accepted if no value changes, and so are floats without a fraction for integer inputs. Floats
are rounded to the precision of the input, and rejected if they would become infinite. Booleans, decimals, dates and
timestamps are cast as in `prepare`: see `rankline.workflows.schema.arrow_types`.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import ConvertOptions

from rankline.serving.client.schema import ColumnSchema
from rankline.workflows.core.errors import RequestError
from rankline.workflows.schema.arrow_types import holds_lists, is_text, of_plain_type, plain_values
from rankline.workflows.schema.ragged import offsets_of, pad
from rankline.workflows.schema.tensor_names import MISSING_LIST
from rankline.workflows.schema.tensors import Tensor, fill_value

Array: TypeAlias = npt.NDArray[Any]
Flat: TypeAlias = "Array | pa.LargeBinaryArray"
"""Consecutive values, none of them missing."""

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_NUMBER = r"(?i)^\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity)\s*$"
_SIZE_BYTES = 4
_MAX = {np.dtype(kind): float(np.finfo(kind).max) for kind in (np.float16, np.float32, np.float64)} | {
    np.dtype(np.int64): np.iinfo(np.int64).max
}


@dataclass
class WireTensor:
    """A request tensor, with values in C order and a shape that starts with the number of rows."""

    schema: Tensor
    shape: tuple[int, ...]
    values: Flat

    @cached_property
    def data(self) -> Array:
        """The encoded values: a C-contiguous array of numbers, or uint8 bytes of length-prefixed strings."""
        values = self.values
        return np.ascontiguousarray(values) if isinstance(values, np.ndarray) else _framed(*_text(values))


@dataclass(frozen=True)
class Dense:
    """An input whose rows all have the same shape. The first dimension of `shape` is the number of rows."""

    schema: Tensor
    values: Flat
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    def tensors(self, start: int, stop: int) -> Iterator[WireTensor]:
        num_rows, *row_shape = self.shape
        if (start, stop) == (0, num_rows):
            yield WireTensor(self.schema, self.shape, self.values)
        else:
            per_row = math.prod(row_shape)
            values = self.values[start * per_row : stop * per_row]
            yield WireTensor(self.schema, (stop - start, *row_shape), values)


@dataclass(frozen=True)
class ListRows:
    """A list column, padded in each message to the length of its longest list.

    Attributes:
        elements: values of all lists.
        lengths: int64 [num_rows]; `MISSING_LIST` for a missing list.
        offsets: int64 [num_rows + 1], bounds of each list in `elements`.
    """

    column: ColumnSchema
    elements: Flat
    lengths: Array
    offsets: Array

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    def tensors(self, start: int, stop: int) -> Iterator[WireTensor]:
        """Yield the tensors of a range of rows: padded values, and the length of each list."""
        assert self.column.lengths is not None
        lengths = self.lengths[start:stop]
        (width,) = self.column.values.dims
        if width < 0:
            width = max(int(lengths.max(initial=0)), 1)
        elements = self.elements[self.offsets[start] : self.offsets[stop]]
        yield WireTensor(self.column.values, (len(lengths), width), _padded(elements, lengths, width))
        lengths = lengths.astype(self.column.lengths.numpy_dtype)
        yield WireTensor(self.column.lengths, (len(lengths), 1), lengths)


def to_dense(values: Any, column: ColumnSchema) -> tuple[Dense, ...]:
    """Convert a column to an input, followed by a validity mask if values are missing.

    Args:
        values: list, NumPy array, Arrow column or pandas Series; for candidates also an array [num_rows,
            num_candidates] or lists of equal length. Missing values become NaN for float inputs.
        column: schema of the input, with its mask if it has one.

    Raises:
        RequestError: wrong type, a value that the type cannot represent, missing values without a mask, or lists of
            unequal length.
    """
    tensor = column.values
    values = _without_pandas(values)
    if (
        isinstance(values, np.ndarray)
        and values.dtype == tensor.numpy_dtype
        and values.ndim
        and not values.dtype.hasobject
    ):
        flat, row_shape, valid = values.reshape(-1), values.shape[1:], None
    elif (exact := _exact(values, tensor)) is not None:
        flat, row_shape, valid = exact, (), None
    else:
        flat, row_shape, valid = _convert(values, tensor)
    if valid is not None and (column.mask is None or (row_shape and not tensor.is_candidates)):
        raise RequestError(
            f"{tensor.name!r} has {len(valid) - int(valid.sum())} nulls, which {tensor.datatype} cannot represent. "
            "Fill the nulls, or drop the rows that contain nulls."
        )
    if not row_shape and (tensor.is_scalar or tensor.is_candidates):
        row_shape = (1,)
    if tensor.is_candidates and row_shape == (0,):
        raise RequestError(f"{tensor.name!r} has no candidates, expected at least one per row.")
    if len(row_shape) != len(tensor.dims) or any(d not in (-1, n) for n, d in zip(row_shape, tensor.dims, strict=True)):
        raise RequestError(f"{tensor.name!r} has rows of shape {list(row_shape)}, expected {list(tensor.dims)}.")
    per_row = math.prod(row_shape)
    num_rows = len(flat) // per_row if per_row else len(values)
    dense = Dense(tensor, flat, (num_rows, *row_shape))
    if valid is None:
        return (dense,)
    assert column.mask is not None
    return dense, Dense(column.mask, valid, dense.shape)


def to_ragged(values: Any, column: ColumnSchema) -> ListRows:
    """Convert a column of lists to its concatenated values and the length of each list.

    Args:
        values: lists, arrays, or None for a missing list, in a list, an object array, an Arrow column or a pandas
            Series. A two-dimensional array contains lists of equal length.
        column: schema of the two inputs.

    Raises:
        RequestError: not lists, wrong type, a value that the type cannot represent, missing values in lists of a
            non-float type, or a list longer than the input.
    """
    values, tensor = _without_pandas(values), column.values
    if isinstance(values, np.ndarray) and values.ndim == 2:
        lengths = np.full(len(values), values.shape[1])
        inner = values.reshape(-1)
    else:
        lists = _to_arrow(values, tensor)
        if pa.types.is_null(lists.type):  # no rows, or all lists missing
            lists = lists.cast(pa.list_(pa.null()))
        if not holds_lists(lists.type):
            example = '["a", "b"]' if tensor.numpy_dtype.hasobject else "[1, 2, 3]"
            raise RequestError(
                f"{column.name!r} has values of type {lists.type}, expected lists of {tensor.datatype}: {example}."
            )
        counted = pc.list_value_length(lists)
        counted = counted.fill_null(MISSING_LIST) if counted.null_count else counted
        lengths = counted.to_numpy(zero_copy_only=False).astype(np.int64)
        inner = lists.flatten()
    elements, row_shape, valid = _convert(inner, tensor)
    if row_shape:
        raise RequestError(f"{column.name!r} has nested lists, expected flat lists of {tensor.datatype}.")
    if valid is not None:  # dropping missing values suits recipes, but not imported workflows
        raise RequestError(
            f"{column.name!r} has lists with missing values, which {tensor.datatype} cannot represent. Remove the "
            "missing values from the lists, as a recipe does when it reads files."
        )
    if -1 != tensor.dims[0] < lengths.max(initial=0):
        raise RequestError(f"{column.name!r} has lists of {lengths.max()} values, expected at most {tensor.dims[0]}.")
    return ListRows(column, elements, lengths, offsets_of(np.maximum(lengths, 0)))


def _exact(values: Any, tensor: Tensor) -> Array | None:
    """Convert a list of Python numbers to an array, or return None if a value has another type or is out of range."""
    kinds, dtype = set(map(type, values)) if isinstance(values, list) else set(), tensor.numpy_dtype
    if kinds != {float if dtype.kind == "f" else int} or dtype not in _MAX:
        return None
    limit = _MAX[dtype]
    return np.array(values, dtype) if all(-limit <= value <= limit for value in values) else None


def _convert(values: Any, tensor: Tensor) -> tuple[Flat, tuple[int, ...], Array | None]:
    """Return the flattened values, each row's shape (`()` for scalars) and a validity mask (None if all are valid)."""
    column, row_shape = _flatten(values, tensor)
    column = _cast(column, tensor)
    valid = None
    if column.null_count and tensor.numpy_dtype.kind == "f":
        column = column.fill_null(np.nan)
    elif column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        column = column.fill_null(fill_value(tensor.numpy_dtype))
    return column if tensor.numpy_dtype.hasobject else column.to_numpy(zero_copy_only=False), row_shape, valid


def _flatten(values: Any, tensor: Tensor) -> tuple[pa.Array, tuple[int, ...]]:
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return _to_arrow(values.reshape(-1), tensor), values.shape[1:]
    column = _to_arrow(values, tensor)
    row_shape: tuple[int, ...] = ()
    while holds_lists(column.type):
        lengths = pc.min_max(pc.list_value_length(column)).as_py()
        if column.null_count or lengths["min"] != lengths["max"]:
            raise RequestError(
                f"{tensor.name!r} has ragged lists ({lengths['min']} to {lengths['max']} values, {column.null_count} "
                "nulls), expected lists of equal length. Pad the lists, or send a separate request for each length."
            )
        row_shape += (lengths["min"] or 0,)
        column = column.flatten()
    return column, row_shape


def _without_pandas(values: Any) -> Any:
    """Convert a Series with a NumPy dtype to an array, which is much faster than converting it to Arrow."""
    is_plain = isinstance(getattr(values, "dtype", None), np.dtype) and hasattr(values, "to_numpy")
    return values.to_numpy() if is_plain else values


def _to_arrow(values: Any, tensor: Tensor) -> pa.Array:
    if isinstance(values, str | bytes):
        raise RequestError(f"{tensor.name!r} is the single value {values!r}, expected a column: a list or an array.")
    try:
        is_arrow = isinstance(values, pa.Array | pa.ChunkedArray)
        column = values if is_arrow else pa.array(values, from_pandas=True)  # treats NaN as missing
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"{tensor.name!r} cannot be read as a column of {tensor.datatype} values: {error}") from None
    if isinstance(column, pa.ChunkedArray):
        chunks = list(map(of_plain_type, column.chunks))
        column = pa.chunked_array(chunks).combine_chunks() if chunks else pa.array([], column.type)
    return of_plain_type(column) if tensor.numpy_dtype.kind == "b" else plain_values(column)


def _cast(column: pa.Array, tensor: Tensor) -> pa.Array:
    target = pa.large_binary() if tensor.numpy_dtype.hasobject else pa.from_numpy_dtype(tensor.numpy_dtype)
    if column.type == target:
        return column
    is_right_kind = {
        "b": pa.types.is_boolean,
        "O": lambda kind: any(is_text(kind) for is_text in _TEXT),
    }.get(tensor.numpy_dtype.kind, lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind))
    if not is_right_kind(column.type) and not pa.types.is_null(column.type):
        remedy = _remedy(column, tensor.name)
        raise RequestError(f"{tensor.name!r} has values of type {column.type}, expected {tensor.datatype}.{remedy}")
    if pa.types.is_floating(column.type) and tensor.numpy_dtype.kind != "f":
        column = pc.if_else(pc.is_nan(column), None, column)
    try:
        cast = column.cast(target)
    except pa.ArrowException as error:
        raise RequestError(f"{tensor.name!r} cannot be converted to {tensor.datatype}: {error}") from None
    if tensor.numpy_dtype.kind == "f" and (overflown := _first_overflow(column, cast)):
        raise RequestError(
            f"{tensor.name!r} cannot be converted to {tensor.datatype}: {overflown} would become infinite"
        )
    return cast


def _remedy(column: pa.Array, name: str) -> str:
    if not is_text(column.type):
        return ""
    first = _first_odd(column)
    if re.match(r"\d{4}-\d{2}-\d{2}", first):
        return (
            f" If {first!r} is a time, pass timestamps, such as those from pandas.read_csv(..., "
            f"parse_dates=[{name!r}]), or microseconds since 1970 in UTC."
        )
    return f" Convert strings such as {first!r} to numbers or booleans first."


def _first_odd(texts: pa.Array) -> str:
    """Return the first string that is not a number, preferably one that a CSV reader does not treat as missing."""
    texts = texts.drop_null()
    odd = texts.filter(pc.invert(pc.match_substring_regex(texts, _NUMBER)))
    missing = pa.array(ConvertOptions().null_values, odd.type)
    present = odd.filter(pc.invert(pc.is_in(odd, value_set=missing)))
    return next((str(strings[0]) for strings in (present, odd, texts) if len(strings)), "")


def _first_overflow(column: pa.Array, cast: pa.Array) -> str:
    """Return the first finite value that became infinite in a cast, or an empty string if none did."""
    before, after = (array.to_numpy(zero_copy_only=False).astype(np.float64) for array in (column, cast))
    overflown = before[np.isfinite(before) & np.isinf(after)]
    return str(overflown[0]) if overflown.size else ""


def _padded(elements: Flat, lengths: Array, width: int) -> Flat:
    """Pad consecutive lists to rows of `width` with zeros or empty strings."""
    if isinstance(elements, np.ndarray):
        return pad(elements, lengths, width).reshape(-1)
    sizes, data = _text(elements)
    offsets = offsets_of(pad(sizes, lengths, width).reshape(-1))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _text(strings: pa.LargeBinaryArray) -> tuple[Array, Array]:
    """Return the size of each string in bytes, and the concatenated bytes."""
    _, offsets_buffer, data_buffer = strings.buffers()
    if not len(strings):
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    return np.diff(offsets), data


def _framed(sizes: Array, data: Array) -> Array:
    """Encode strings in Triton's format, each prefixed with its size as a little-endian 32-bit integer."""
    framed = np.empty(_SIZE_BYTES * len(sizes) + len(data), np.uint8)
    begins = np.cumsum(sizes) - sizes + _SIZE_BYTES * np.arange(len(sizes))
    is_size = np.zeros(len(framed), np.bool_)
    is_size[begins[:, None] + np.arange(_SIZE_BYTES)] = True
    framed[is_size] = sizes.astype("<u4").view(np.uint8)
    framed[~is_size] = data
    return framed
