"""How list columns come out of a loader: ragged, as matrices of a fixed shape, padded, or sparse."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankline.training.data.loader.columns import Column
from rankline.training.data.loader.dataset import Columns
from rankline.workflows.core.errors import ArgumentError, ConfigError, DataError
from rankline.workflows.schema.ragged import Ragged

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sparse:
    """Lists as the coordinates of a sparse matrix.

    Attributes:
        coordinates: row and place of each value, int64 of shape (M, 2).
        values: shape (M,).
        shape: rows, and maximum length.
    """

    coordinates: Array
    values: Array
    shape: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """NVTabular's arguments for lists.

    Attributes:
        sparse_names: list columns that become sparse matrices.
        sparse_max: column → number of columns of its matrix; by default the maximum length in the schema, or the
            longest list of the batch.
        sparse_as_dense: pad with zeros instead.
    """

    sparse_names: Collection[str] = ()
    sparse_max: Mapping[str, int] | None = None
    sparse_as_dense: bool = False

    def check(self, inputs: Collection[str]) -> None:
        """Raise `ConfigError` unless the arguments fit the input columns."""
        if isinstance(self.sparse_names, str) or not isinstance(self.sparse_max or {}, Mapping):
            raise ArgumentError(
                f"sparse_names is {self.sparse_names!r} and sparse_max {self.sparse_max!r}, expected a list of columns "
                "and a mapping from column to width."
            )
        if unknown := sorted(set(self.sparse_names) - set(inputs)):
            raise ConfigError(f"sparse_names has {unknown}, expected input columns: {sorted(inputs)}.")
        if unknown := sorted(set(self.sparse_max or {}) - set(self.sparse_names)):
            raise ConfigError(f"sparse_max has {unknown}, which sparse_names lacks: {sorted(self.sparse_names)}.")
        for name, width in (self.sparse_max or {}).items():
            if not isinstance(width, int | np.integer) or width < 1:
                raise ConfigError(f"sparse_max of {name!r} is {width!r}, expected a positive integer.")

    def of_column(self, name: str, column: Column, columns: Columns) -> Column | Sparse:
        """Return a batch's column in the layout that was asked for.

        Raises:
            DataError: a list is longer than the width or does not have the shape.
        """
        if name in columns.shapes:
            return _shaped(name, column, columns.shapes[name])
        if name not in self.sparse_names:
            return column
        lists = _ragged(name, column)
        width = (self.sparse_max or {}).get(name, columns.widths.get(name, int(lists.lengths.max(initial=0))))
        if (longest := int(lists.lengths.max(initial=0))) > width:
            raise DataError(
                f"column {name!r} has a list of {longest} values, more than its width, {width}. Pass a larger width in "
                "sparse_max, or truncate the lists in the workflow with ListSlice."
            )
        return lists.padded(width).values if self.sparse_as_dense else _sparse(lists, width)


def _shaped(name: str, column: Column, shape: tuple[int, ...]) -> Array:
    """Return lists as (N, *shape). Lists of one dimension may be shorter and are padded with zeros."""
    size = math.prod(shape)
    if not isinstance(column, Ragged):
        if math.prod(column.shape[1:]) != size:
            raise DataError(f"column {name!r} has {column.shape[1:]} values per row, but {shape} in the schema.")
        return column.reshape(len(column), *shape)
    lengths = column.lengths
    if odd := lengths[(lengths > size) if len(shape) == 1 else (lengths != size)].tolist():
        raise DataError(
            f"column {name!r} has a list of {odd[0]} values, but rows of shape {shape} in the schema. Correct the "
            "schema, or the lists."
        )
    return column.padded(size).values.reshape(len(lengths), *shape)


def _ragged(name: str, column: Column) -> Ragged:
    if isinstance(column, Ragged):
        return column
    if column.ndim != 2:
        raise DataError(f"column {name!r} has single values, but is one of sparse_names. Name only list columns there.")
    return Ragged(values=column.reshape(-1), offsets=np.arange(len(column) + 1) * column.shape[1])


def _sparse(lists: Ragged, width: int) -> Sparse:
    lengths = lists.lengths
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(rows)) - np.repeat(lists.offsets[:-1], lengths)
    return Sparse(np.stack([rows, places], axis=1), lists.values, (len(lengths), width))
