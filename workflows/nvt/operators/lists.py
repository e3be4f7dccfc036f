"""Operators for columns of lists."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import LONGEST_PADDED
from rankline.workflows.nvt.compat import nvt, ops

LONGEST_SLICE = 1 << 31
"""Lists cannot be longer, so a slice that may be is not bounded at all."""


class NullToEmptyList(ops.Operator):  # type: ignore[misc]  # NVTabular has no annotations
    """Replace a missing list by an empty one.

    A left join leaves null where the key is unknown, and `Categorify` cannot encode a null list.
    """

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Apply to each selected list column."""
        result = df[col_selector.names].copy()
        for name in col_selector.names:
            result[name] = pd.Series(
                [value if isinstance(value, (list, np.ndarray)) else [] for value in df[name]],
                index=df.index,
                dtype=object,
            )
        return result


class PaddedListSlice(ops.ListSlice):  # type: ignore[misc]
    """`ListSlice` that pads on a CPU too, whatever the lists are made of.

    NVTabular 23.8 pads Python lists only, and leaves the arrays as they are that `Categorify` and Parquet files make.

    Args:
        start: first position, from the end where negative; the end where `end` is not given and it is positive.
        end: position after the last, from the end where negative.
        pad_value: what is put at the end of a list that is shorter than the longest slice; of the lists' dtype.
    """

    def __init__(self, start: int, end: int | None = None, pad_value: float | str = 0) -> None:
        super().__init__(start, end, pad=True, pad_value=pad_value)
        if not 0 < self.max_elements <= LONGEST_PADDED:
            raise ConfigError(
                f"PaddedListSlice({start}, {end}) has no maximum length, expected 1 to {LONGEST_PADDED} values. Pass a "
                "start and an end."
            )

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Apply to each selected list column."""
        result = df[col_selector.names].copy()
        for name in col_selector.names:
            result[name] = pd.Series([self._slice(row) for row in df[name]], index=df.index, dtype=object)
        return result

    def _slice(self, row: Any) -> NDArray[Any]:
        # As objects strings keep what follows a NUL.
        part = np.asarray(row, dtype=object if isinstance(self.pad_value, str) else None)[self.start : self.end]
        return np.append(part, np.full(self.max_elements - len(part), self.pad_value, dtype=part.dtype))


class SameLengths(ops.Operator):  # type: ignore[misc]
    """Lists that go together value by value: all get as many values as those of one column.

    The latest stay, and zeros come before them where a list is shorter. A request may say anything, and a model that
    counts the values of one column would take those of another row for the rest.

    Args:
        like: the column whose lists stay as they are.
    """

    def __init__(self, like: str) -> None:
        super().__init__()
        self.like = like

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Apply to each selected column of lists, none of them missing."""
        result = df[col_selector.names].copy(deep=False)
        for name in col_selector.names:
            pairs = zip(df[name], df[self.like], strict=True)
            result[name] = pd.Series([_latest(row, len(like)) for row, like in pairs], index=df.index, dtype=object)
        return result


def _latest(row: Any, num_values: int) -> NDArray[Any]:
    latest = np.asarray(row)[max(0, len(row) - num_values) :]
    return np.concatenate([np.zeros(num_values - len(latest), dtype=latest.dtype), latest])
