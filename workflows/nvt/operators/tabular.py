"""NVTabular operators for tables; see `rankline.workflows.nvt.operators`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rankline.workflows.core.errors import UnfitError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.kernels.dates import date_part

from merlin.dtypes.shape import DefaultShapes  # isort: skip


class DateParts(ops.Operator):  # type: ignore[misc]  # NVTabular has no annotations
    """Extracts date and time parts: column → COLUMN_PART, float64, NaN for missing times.

    The input is microseconds since 1970 in UTC.

    Args:
        parts: column → names of parts, see `rankline.workflows.nvt.kernels.dates`.
    """

    def __init__(self, parts: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.parts = {name: list(of_column) for name, of_column in parts.items()}

    def column_mapping(self, col_selector: nvt.ColumnSelector) -> dict[str, list[str]]:
        return {f"{name}_{part}": [name] for name in col_selector.names for part in self.parts[name]}

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        made = {}
        for name in col_selector.names:
            missing = df[name].isna().to_numpy()
            micros = df[name].to_numpy() if not missing.any() else df[name].fillna(0).to_numpy()
            for part in self.parts[name]:
                values = date_part(micros.astype(np.int64), part)
                made[f"{name}_{part}"] = np.where(missing, np.nan, values)
        return pd.DataFrame(made, index=df.index)

    @property
    def output_dtype(self) -> Any:
        return np.float64


class VectorElements(ops.Operator):  # type: ignore[misc]
    """Splits vectors into columns COLUMN_0, COLUMN_1 and so on, float64, with NaN for an empty list.

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
