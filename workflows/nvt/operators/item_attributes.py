"""NVTabular operators for items and lists of items: what is known of each, and one vocabulary for both.

NVTabular 23.8 joins single values only, and a vocabulary that it makes of a column and a list together counts the lists
as well. Each operator is importable by name, so a saved workflow refers to it and holds no code.
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
    """Attributes of items, of single ones and of each one in a list: column KEY + SUFFIX → ATTRIBUTE + SUFFIX.

    Args:
        items: one row per item.
        key: column of `items` that names the item; begins the name of every column that the operator is applied to.
        fill: attribute, which is a column of `items`, → what an item has that lacks it or is not known.

    Raises:
        DataError: there are no items, or one is missing or there twice.
    """

    def __init__(self, items: pd.DataFrame, key: str, fill: Mapping[str, Fill]) -> None:
        super().__init__()
        self.items, self.key, self.fill = items[[key, *fill]].reset_index(drop=True), key, dict(fill)
        keys = self.items[key]
        if not len(keys) or keys.isna().any() or keys.duplicated().any():  # is_unique ends strings at NUL
            raise DataError(
                f"{key} of {len(keys)} items: {keys.isna().sum()} missing, {keys.duplicated().sum()} repeated. "
                "Expected at least one item, and each of them once."
            )
        self._index = pd.Index(keys)
        self._values = {name: _filled(self.items[name], value) for name, value in fill.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.items, self.key, self.fill)

    def outputs(self, name: str) -> dict[str, str]:
        """Attribute → name of its column, for a column of items."""
        if not name.startswith(self.key):
            raise ConfigError(
                f"ItemAttributes got a column {name!r}, expected one whose name begins with {self.key!r}."
            )
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
        """Row of each item; the one after the last for an item that is missing or unknown."""
        rows = np.full(len(items), len(self._index))
        present = items.notna().to_numpy()
        if present.any():
            values = items.to_numpy()[present]
            with np.errstate(invalid="ignore"):  # a number that is too large becomes one that does not equal it
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
    """The values, and `fill` where one is missing and once more at the end."""
    values = column.to_numpy()
    filled = np.empty(len(values) + 1, dtype=values.dtype)
    filled[:-1] = np.where(column.isna(), values.dtype.type(fill) if values.dtype != object else fill, values)
    filled[-1] = fill
    return filled


class SharedCategorify(HashedCategorify):
    """`HashedCategorify` in which some columns, single or lists, are encoded by the vocabularies of others.

    Only the others are counted, so that a list which repeats what other rows hold changes no vocabulary.

    Args:
        shared: column → the column whose vocabulary it takes.
        freq_threshold: values that are seen less often count as unseen.
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
