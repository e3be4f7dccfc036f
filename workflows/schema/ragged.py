"""List columns in two layouts: ragged, as in Arrow and the loader, and padded, as in requests.

Imports only NumPy and Arrow.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, VALUES
from rankline.workflows.schema.tensors import fill_value

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Lists of any length, one per row."""

    values: Array  # values of all lists, concatenated, shape (M,)
    offsets: Array  # row i has the values from offsets[i] up to offsets[i + 1]; from 0 to M, shape (N + 1,)

    @classmethod
    def of_rows(cls, rows: Iterable[Any]) -> "Ragged":
        """Build ragged lists from one list or array per row. The dtype is int64 if all are empty."""
        lists = list(rows)
        filled = [values for values in lists if len(values)]  # NumPy treats an empty Python list as float
        values = np.concatenate(filled) if filled else np.zeros(0, np.int64)
        return cls(values=values, offsets=offsets_of(np.fromiter(map(len, lists), np.int64, len(lists))))

    @classmethod
    def of_arrow(cls, array: pa.Array) -> "Ragged":
        """Build ragged lists from a null-free Arrow array of numeric lists, without copying if possible."""
        offsets = array.offsets.to_numpy()
        first = offsets[0] if len(offsets) else 0
        return cls(values=flat_of_arrow(array.flatten()), offsets=offsets - first if first else offsets)

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        lengths = empty((len(self.offsets) - 1,), np.dtype(np.int32))
        return np.subtract(self.offsets[1:], self.offsets[:-1], out=lengths, casting="same_kind")

    def padded(self, width: int | None = None) -> "Padded":
        """Pad the lists to `width` values, or to the maximum length if `width` is None."""
        lengths = self.lengths
        return Padded(pad(self.values, lengths, int(lengths.max(initial=0)) if width is None else width), lengths)


@dataclass(frozen=True)
class Padded:
    """Zero-padded lists."""

    values: Array  # [num_rows, width], zeros or empty strings after the end of each list
    lengths: npt.NDArray[np.int32]  # int32 [num_rows]; in a request, `MISSING_LIST` marks a missing list

    def ragged(self) -> Ragged:
        """Convert to ragged lists with int64 offsets, without copying values if possible. No list may be missing."""
        width = self.values.shape[1]
        offsets = offsets_of(self.lengths)
        if offsets[-1] == self.values.size:
            return Ragged(values=self.values.reshape(-1), offsets=offsets)
        if len(self.lengths) == 1:
            return Ragged(values=self.values[0, : offsets[-1]], offsets=offsets)
        return Ragged(values=self.values[np.arange(width) < self.lengths[:, None]], offsets=offsets)


def pad(values: Array, lengths: Array, width: int) -> Array:
    """Pad concatenated lists of shape [M] to [N, width] with zeros or empty strings, without copying if possible.

    Lengths are negative for missing lists. Raises ValueError if a list is longer than `width`.
    """
    if (longest := int(lengths.max(initial=0))) > width:
        raise ValueError(f"a list has {longest} values, expected at most {width}")
    if values.size == len(lengths) * width and values.flags.c_contiguous:
        return values.reshape(len(lengths), width)
    padded = np.zeros((len(lengths), width), values.dtype)  # unlike `np.full`, may get pages that are already zero
    if values.dtype.hasobject:
        padded[:] = fill_value(values.dtype)
    if len(lengths) == 1:
        padded[0, : values.size] = values
    else:
        padded[np.arange(width) < lengths[:, None]] = values
    return padded


def offsets_of(lengths: Array) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def arrow_lists(values: pa.Array | Array, offsets: Array) -> pa.ListArray:
    """Build an Arrow list array from concatenated values of shape [M] and offsets of shape [N + 1]."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def padded_tensors(columns: Mapping[str, Array | Padded]) -> dict[str, Array]:
    """Return columns in the layout that Triton passes to a model.

    Single values are [N, 1], or [N, num_candidates] for candidate columns. A list column becomes two tensors,
    `name__values` [N, width] and `name__nnzs` [N, 1].
    """
    tensors: dict[str, Array] = {}
    for name, column in columns.items():
        if isinstance(column, Padded):
            tensors |= {name + VALUES: column.values, name + NNZS: column.lengths.reshape(-1, 1)}
        else:
            tensors[name] = column if column.ndim == 2 else column.reshape(-1, 1)
    return tensors


def padded_rows(frame: Any) -> dict[str, Array]:
    """Return encoded rows in the layout of `padded_tensors`, which every trained model accepts.

    List columns of the pandas DataFrame have the dtype `object`.
    """
    columns = {name: _column_of(frame[name]) for name in frame.columns}
    return padded_tensors({n: c.padded() if isinstance(c, Ragged) else c for n, c in columns.items()})


def ragged_tensors(frame: Any) -> dict[str, Array]:
    """Return encoded rows (see `padded_rows`) in the layout of merlin-systems.

    Single values are [N]. A list column becomes two tensors, `name__values` [M] and `name__offsets` int32 [N + 1].
    """
    tensors: dict[str, Array] = {}
    for name in frame.columns:
        column = _column_of(frame[name])
        if isinstance(column, Ragged):
            tensors |= {name + VALUES: column.values, name + OFFSETS: column.offsets.astype(np.int32)}
        else:
            tensors[name] = column
    return tensors


def _column_of(series: Any) -> Array | Ragged:
    if series.dtype == object:
        return Ragged.of_rows(series)
    values: Array = series.to_numpy()
    return values


def flat_of_arrow(array: pa.Array) -> Array:
    """Convert an Arrow array of non-null numbers to NumPy, as a view if NumPy and Numba support the type."""
    if pa.types.is_boolean(array.type):  # Arrow stores booleans as bits
        array = array.cast(pa.uint8())
    numbers: Array = array.to_numpy()
    return numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers  # Numba has no float16


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Allocate an array from Arrow's memory pool, which reuses memory and aligns it to 64 bytes so that TensorFlow need
    not copy it.
    """
    size = math.prod(shape)
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer(pa.allocate_buffer(size * dtype.itemsize), dtype).reshape(shape)
