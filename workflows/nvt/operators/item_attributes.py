"""NVTabular operators that look up item attributes and share vocabularies between item columns and lists of items.

NVTabular 23.8 joins only single values, and counts list elements too when a column and a list share a vocabulary. The
operators here are importable by name, so saved workflows refer to them without containing code.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.operators.categorify import HashedCategorify
from rankline.workflows.nvt.operators.values import flattened

Fill = int | float | str


class ItemAttributes(ops.Operator):  # type: ignore[misc]  # NVTabular has no annotations
    """An operator that looks up item attributes. A column KEY + SUFFIX of items or item lists yields one column
    ATTRIBUTE + SUFFIX per attribute.

    Args:
        items: one row per item.
        key: column of item ids in `items`; the name of every input column must start with it.
        fill: attribute column of `items` → value for unknown items and for items without the attribute.

    Raises:
        DataError: `items` is empty, or an item id is missing or duplicated.
    """

    def __init__(self, items: pd.DataFrame, key: str, fill: Mapping[str, Fill]) -> None:
        super().__init__()
        self.items, self.key, self.fill = items[[key, *fill]].reset_index(drop=True), key, dict(fill)
        keys = self.items[key]
        if not len(keys) or keys.isna().any() or keys.duplicated().any():  # is_unique truncates strings at NUL
            raise DataError(
                f"{key} must be a non-empty column of distinct values, got {len(keys)} items, of which "
                f"{keys.isna().sum()} are missing and {keys.duplicated().sum()} are duplicates."
            )
        self._index = pd.Index(keys)
        self._values = {name: _filled(self.items[name], value) for name, value in fill.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.items, self.key, self.fill)

    def outputs(self, name: str) -> dict[str, str]:
        """Return a dict from each attribute to the name of its output column for the input column `name`."""
        if not name.startswith(self.key):
            raise ConfigError(f"ItemAttributes got column {name!r}, expected a name starting with {self.key!r}.")
        return {attribute: attribute + name.removeprefix(self.key) for attribute in self.fill}

    def column_mapping(self, col_selector: nvt.ColumnSelector) -> dict[str, list[str]]:
        return {output: [name] for name in col_selector.names for output in self.outputs(name).values()}

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        made = {}
        for name in col_selector.names:
            flat, rebuild = flattened(df[name])
            rows = self._rows_of(flat)
            for attribute, output in self.outputs(name).items():
                made[output] = rebuild(self._values[attribute][rows])
        return pd.DataFrame(made, index=df.index)

    def _rows_of(self, items: "pd.Series[Any]") -> NDArray[np.int64]:
        """Return the row number of each item, or `len(self._index)` for missing and unknown items."""
        rows = np.full(len(items), len(self._index))
        present = items.notna().to_numpy()
        if present.any():
            values = items.to_numpy()[present]
            with np.errstate(invalid="ignore"):  # too large numbers wrap and fail the comparison below
                keys = values.astype(self._index.dtype)
            found = self._index.get_indexer(keys)
            rows[present] = np.where((found >= 0) & (keys == values), found, len(self._index))
        return rows

    def _compute_dtype(self, col_schema: Any, input_schema: Any) -> Any:
        (name,) = input_schema.column_names
        by_output = {output: attribute for attribute, output in self.outputs(name).items()}
        dtype = self._values[by_output[col_schema.name]].dtype
        return col_schema.with_dtype(str if dtype.kind == "O" else dtype)


def _filled(column: "pd.Series[Any]", fill: Fill) -> NDArray[Any]:
    """Return the column's values with missing ones replaced by `fill`, plus a final `fill` for unknown items."""
    values = column.to_numpy()
    filled = np.empty(len(values) + 1, dtype=values.dtype)
    filled[:-1] = np.where(column.isna(), values.dtype.type(fill) if values.dtype != object else fill, values)
    filled[-1] = fill
    return filled


class SharedCategorify(HashedCategorify):
    """A `HashedCategorify` in which a column of values or lists can use another column's vocabulary.

    Only columns with their own vocabulary are counted, so lists that repeat the values of other rows do not change it.

    Args:
        shared: column → the column whose vocabulary it uses.
        freq_threshold: treat values that occur less often as unseen.
        num_buckets: number of ids for unseen values.
    """

    def __init__(self, shared: Mapping[str, str], *, freq_threshold: int = 0, num_buckets: int = 1) -> None:
        super().__init__(freq_threshold=freq_threshold, num_buckets=num_buckets)
        self.storage_name = dict(shared)

    def fit(self, col_selector: nvt.ColumnSelector, ddf: Any) -> Any:
        own = [name for name in col_selector.names if name not in self.storage_name]
        return super().fit(nvt.ColumnSelector(own), ddf)

    def _vocabulary(self, name: str) -> "pd.Series[Any]":
        return super()._vocabulary(self.storage_name.get(name, name))
