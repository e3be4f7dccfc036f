"""NVTabular operators of tables; see `workflows.operators`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workflows.dates import date_part
from workflows.upstream import nvt, ops


class DateParts(ops.Operator):  # type: ignore[misc]  # NVTabular has no annotations
    """Parts of times that are microseconds since 1970 in UTC: column → COLUMN_PART, float64, NaN where it is missing.

    Args:
        parts: column → names of parts, see `workflows.dates`.
    """

    def __init__(self, parts: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.parts = {name: list(of_column) for name, of_column in parts.items()}

    def column_mapping(self, col_selector: nvt.ColumnSelector) -> dict[str, list[str]]:
        """Output column → the input column that it is made of."""
        return {f"{name}_{part}": [name] for name in col_selector.names for part in self.parts[name]}

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Take the parts of each selected column."""
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
        """float64."""
        return np.float64
