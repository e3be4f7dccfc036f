"""Operators for list columns."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rankline.workflows.core.errors import ConfigError, UnfitError
from rankline.workflows.core.validation import MAX_PADDED_LENGTH
from rankline.workflows.nvt.compat import nvt, ops

from merlin.dtypes.shape import DefaultShapes  # isort: skip

MAX_SLICE_LENGTH = 1 << 31
"""Upper limit of list lengths; a slice of this length is unbounded."""


class NullToEmptyList(ops.Operator):  # type: ignore[misc]  # NVTabular has no annotations
    """An operator that replaces missing lists with empty lists.

    A left join returns null for unknown keys, and `Categorify` cannot encode a null list.
    """

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        result = df[col_selector.names].copy()
        for name in col_selector.names:
            result[name] = pd.Series(
                [value if isinstance(value, (list, np.ndarray)) else [] for value in df[name]],
                index=df.index,
                dtype=object,
            )
        return result


class PaddedListSlice(ops.ListSlice):  # type: ignore[misc]
    """A `ListSlice` that pads both Python lists and arrays on a CPU.

    NVTabular 23.8 pads only Python lists, but not the arrays that `Categorify` and Parquet files produce.

    Args:
        start: first position; negative values count from the end. Without `end`, positive values are the end instead.
        end: position after the last; negative values count from the end.
        pad_value: value that fills up shorter lists; of the lists' dtype.
    """

    def __init__(self, start: int, end: int | None = None, pad_value: float | str = 0) -> None:
        super().__init__(start, end, pad=True, pad_value=pad_value)
        if not 0 < self.max_elements <= MAX_PADDED_LENGTH:
            raise ConfigError(
                f"PaddedListSlice({start}, {end}) needs a maximum length of 1 to {MAX_PADDED_LENGTH} values. "
                "Pass both start and end."
            )

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        result = df[col_selector.names].copy()
        for name in col_selector.names:
            result[name] = pd.Series([self._slice(row) for row in df[name]], index=df.index, dtype=object)
        return result

    def _slice(self, row: Any) -> NDArray[Any]:
        # With the dtype object, strings keep characters after a NUL.
        part = np.asarray(row, dtype=object if isinstance(self.pad_value, str) else None)[self.start : self.end]
        return np.append(part, np.full(self.max_elements - len(part), self.pad_value, dtype=part.dtype))


class SameLengths(ops.Operator):  # type: ignore[misc]
    """An operator that truncates or pads lists to match the lengths of the lists in another column.

    The latest values are kept, and shorter lists are padded with zeros at the front. Requests may contain lists of
    different lengths, and a model that uses the lengths of one column would read values of other rows in the others.

    Args:
        like: the column whose lists determine the lengths.
    """

    def __init__(self, like: str) -> None:
        super().__init__()
        self.like = like

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Truncate or pad the lists in each selected column, which must not contain missing lists."""
        result = df[col_selector.names].copy(deep=False)
        for name in col_selector.names:
            pairs = zip(df[name], df[self.like], strict=True)
            result[name] = pd.Series([_latest(row, len(like)) for row, like in pairs], index=df.index, dtype=object)
        return result


def _latest(row: Any, num_values: int) -> NDArray[Any]:
    latest = np.asarray(row)[max(0, len(row) - num_values) :]
    return np.concatenate([np.zeros(num_values - len(latest), dtype=latest.dtype), latest])


class VectorElements(ops.Operator):  # type: ignore[misc]
    """An operator that splits vectors into float64 columns COLUMN_0, COLUMN_1 and so on, with NaN for empty lists.

    Args:
        lengths: column → length of its lists; lists may also be empty.
    """

    def __init__(self, lengths: Mapping[str, int]) -> None:
        super().__init__()
        self.lengths = dict(lengths)

    def column_mapping(self, col_selector: nvt.ColumnSelector) -> dict[str, list[str]]:
        return {f"{name}_{number}": [name] for name in col_selector.names for number in range(self.lengths[name])}

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Extract the elements of each selected column.

        Raises:
            UnfitError: a list has another length.
        """
        made = []
        for name in col_selector.names:
            length = self.lengths[name]
            counts = np.array([len(vector) for vector in df[name]], np.int64)
            if odd := sorted({*counts.tolist()} - {0, length}):
                raise UnfitError(f"column {name!r} has a list of {odd[0]} values, expected {length}.")
            numbers = np.full((len(df), length), np.nan)
            if counts.any():
                numbers[counts > 0] = np.stack(df[name][counts > 0])
            made.append(pd.DataFrame(numbers, index=df.index, columns=[f"{name}_{n}" for n in range(length)]))
        return pd.concat(made, axis=1)

    def _compute_shape(self, col_schema: Any, input_schema: Any) -> Any:  # noqa: ARG002  (Merlin's interface)
        return col_schema.with_shape(DefaultShapes.SCALAR)

    @property
    def output_dtype(self) -> Any:
        return np.float64
