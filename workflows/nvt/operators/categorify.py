"""`Categorify` variants that are faster than NVTabular 23.8, order ids by value, or give unseen values stable ids."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from dask.delayed import delayed
from numpy.typing import NDArray

from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.core.validation import MAX_BUCKETS
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.io.vocabulary_files import read_vocabulary
from rankline.workflows.nvt.keys import bucket_of
from rankline.workflows.nvt.operators.values import arrow_dictionary, dictionary_of, flattened, plain_values
from rankline.workflows.schema.arrow_types import is_text
from rankline.workflows.schema.feature_spec import FIRST_UNSEEN_ID, NULL_ID

from merlin.io.worker import get_worker_cache  # isort: skip
from nvtabular.ops.categorify import _write_uniques  # isort: skip


class Categorify(ops.Categorify):  # type: ignore[misc]
    """A faster `Categorify` that also accepts partitions in which all values of a column are missing.

    NVTabular 23.8 groups each partition by each column, merges partitions with the vocabulary, and converts nullable
    numbers to Python objects. It also fails on partitions without any value, because it inspects the first one. The
    vocabularies, which NVTabular's functions write, and the ids are the same.
    """

    def fit(self, col_selector: nvt.ColumnSelector, ddf: Any) -> Any:
        if self.vocabs or not self._is_simple(col_selector):
            return super().fit(col_selector, ddf)
        parts = [delayed(_counts)(part, col_selector.names) for part in ddf.to_delayed()]
        while len(parts) > 1:
            groups = range(0, len(parts), _PARTS_AT_ONCE)
            parts = [delayed(_summed)(parts[first : first + _PARTS_AT_ONCE]) for first in groups]
        return parts[0]

    def fit_finalize(self, categories: Any) -> None:
        """Build the vocabularies from the counts and write them to files.

        Raises:
            DataError: all values of a column are missing.
        """
        if counted := {name: value for name, value in categories.items() if isinstance(value, pd.DataFrame)}:
            options = self._create_fit_options_from_columns(list(counted))
            # Not by Path, which drops "./": NVTabular copies a file when saving if its name starts with `out_path`.
            directory = f"{self.out_path}/{options.stat_name}"
            Path(directory).mkdir(parents=True, exist_ok=True)
            for name, counts in counted.items():
                selector = nvt.ColumnSelector([name])
                categories[name] = _write_uniques([counts], directory, selector, options, cpu=True)
        if empty := [name for name, path in categories.items() if not Path(path).exists()]:
            raise DataError(
                f"columns {empty} are missing in every training row, so there is nothing to encode. Provide more "
                "rows, or leave the columns out."
            )
        super().fit_finalize(categories)

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        if not self._is_simple(col_selector):
            return super().transform(col_selector, df)
        ids = {name: self._ids_of(name, df[name]) for name in col_selector.names}
        made = _frame({name: column for name, column in ids.items() if column is not None}, df.index)
        others = [name for name, column in ids.items() if column is None]
        if not others:
            return made
        return super().transform(nvt.ColumnSelector(others), df[others]).join(made)[col_selector.names]

    def _is_simple(self, col_selector: nvt.ColumnSelector) -> bool:
        is_grouped = any(len(group.names) > 1 for group in col_selector.subgroups)
        return not self.single_table and self.split_out == 1 and not is_grouped

    def _ids_of(self, name: str, column: "pd.Series[Any]") -> NDArray[Any] | None:
        """Return the ids of a numeric, Arrow or all-missing column, or None for other columns."""
        if isinstance(column.dtype, pd.ArrowDtype):
            return self._ids_of_arrow(name, column)
        present = column.notna().to_numpy()
        ids = np.full(len(column), NULL_ID, dtype=self.output_dtype)
        if present.any():
            if column.dtype.kind not in "iuf":
                return None
            vocabulary = self._vocabulary(name)
            if vocabulary.index.dtype.kind not in "iuf":
                return None
            values = column.to_numpy()[present]
            with np.errstate(invalid="ignore"):  # too large numbers wrap and fail the comparison below
                keys = values.astype(vocabulary.index.dtype)
            position = vocabulary.index.get_indexer(keys)
            known = (position >= 0) & (keys == values)  # excludes fractions, which the cast to integers truncates
            found = np.full(len(values), FIRST_UNSEEN_ID, dtype=ids.dtype)
            found[known] = vocabulary.to_numpy()[position[known]]
            ids[present] = found
        return ids

    def _ids_of_arrow(self, name: str, column: "pd.Series[Any]") -> NDArray[Any] | None:
        """Encode an Arrow column, looking up each distinct value only once."""
        encoded = dictionary_of(column)
        distinct = encoded.dictionary
        ids = (
            self._ids_of_strings(name, distinct) if is_text(distinct.type) else self._ids_of(name, distinct.to_pandas())
        )
        return None if ids is None else np.append(ids, NULL_ID).take(encoded.indices.fill_null(len(ids)).to_numpy())

    def _ids_of_strings(self, name: str, strings: pa.Array) -> NDArray[Any]:
        vocabulary = self._vocabulary(name)
        known = pa.array(vocabulary.index, pa.large_string(), from_pandas=True)
        positions = pc.index_in(strings.cast(pa.large_string()), value_set=known)
        ids = np.full(len(positions), FIRST_UNSEEN_ID, dtype=self.output_dtype)
        found = positions.is_valid().to_numpy(zero_copy_only=False)
        ids[found] = vocabulary.to_numpy()[positions.drop_null().to_numpy()]
        return ids

    def _vocabulary(self, name: str) -> "pd.Series[Any]":
        """Return a column's ids indexed by value, from NVTabular's cache, which is cleared when vocabularies change."""
        path = self.categories[name]
        with get_worker_cache("vocabularies") as cache:
            if path not in cache:
                frame = read_vocabulary(path, [name])
                num_unseen = self.num_buckets[name] if isinstance(self.num_buckets, dict) else self.num_buckets or 1
                index = pd.Index(frame[name])
                index.get_indexer(index[:1])  # builds the hash table, which two threads cannot do at once
                cache[path] = pd.Series(ids_of_rows(frame, num_unseen), index=index)
            return cache[path]


def ids_of_rows(vocabulary: pd.DataFrame, num_unseen: int) -> NDArray[np.int64]:
    """Return the id of each vocabulary row. If ids were not saved as the index, number rows from the first free id."""
    first = FIRST_UNSEEN_ID + num_unseen
    ids: NDArray[np.int64] = vocabulary.index.to_numpy()
    return ids + first if len(ids) and ids[0] < first else ids


_PARTS_AT_ONCE = 8


def _counts(df: pd.DataFrame, names: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Return counts of each column's distinct and missing values, as frames with NVTabular's column names."""
    counts = {}
    for name in names:
        values, _ = flattened(df[name])
        if (encoded := arrow_dictionary(values)) is not None:
            distinct, sizes = _counts_of_dictionary(encoded)
        else:
            values = values + 0.0 if values.dtype.kind == "f" else values  # Arrow distinguishes the two zeros
            distinct, sizes = pa.array(values, from_pandas=True).value_counts().flatten()
        counts[name] = pd.DataFrame({name: distinct.to_pandas(), f"{name}_size": sizes.to_pandas()})
    return counts


def _counts_of_dictionary(values: pa.DictionaryArray) -> tuple[pa.Array, pa.Array]:
    """Return the values that occur in a dictionary array, including null, and their counts."""
    codes = values.indices.fill_null(len(values.dictionary)).to_numpy()
    sizes = np.bincount(codes, minlength=len(values.dictionary) + 1)
    occur = np.flatnonzero(sizes)
    return values.dictionary.take(pa.array(occur, mask=occur == len(values.dictionary))), pa.array(sizes[occur])


def _summed(parts: Sequence[Mapping[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    return {
        name: pd.concat([part[name] for part in parts]).groupby(name, dropna=False, sort=False).sum().reset_index()
        for name in parts[0]
    }


def _frame(columns: Mapping[str, Any], index: pd.Index) -> pd.DataFrame:
    """Build a frame, stacking arrays of one dtype into a single block so that pandas need not consolidate them."""
    arrays = list(columns.values())
    if arrays and all(isinstance(array, np.ndarray) and array.dtype == arrays[0].dtype for array in arrays):
        return pd.DataFrame(np.stack(arrays).T, columns=list(columns), index=index)
    return pd.DataFrame(dict(columns), index=index)


class OrderedCategorify(Categorify):
    """A `Categorify` for numbers that assigns ids in order of value, so that decision trees can split on value ranges.

    With NVTabular's order by frequency, a decision tree would need a leaf per hour to split a day into two parts.
    """

    def fit_finalize(self, categories: Any) -> None:
        """Write each vocabulary in ascending order of value."""
        super().fit_finalize(categories)
        for name, path in self.categories.items():
            counted = pd.read_parquet(path)
            counted.sort_values(name, kind="stable").set_index(counted.index).to_parquet(path)


class HashedCategorify(Categorify):
    """A `Categorify` that hashes each unseen value to one of `num_buckets` buckets, regardless of its row position.

    On a CPU, NVTabular 23.8 hashes the row's position together with the value (dask's `hash_object_dispatch` includes
    the index). The same unseen value gets a different id in every row, so serving cannot match training. Ids: 0
    padding, 1 null, 2 … num_buckets + 1 unseen, then the vocabulary by frequency.
    """

    def buckets_of(self, name: str) -> int:
        """Return the number of hash buckets for a column.

        Raises:
            ConfigError: the number is outside 1 to `MAX_BUCKETS`.
        """
        num_buckets = int(self.num_buckets[name] if isinstance(self.num_buckets, dict) else self.num_buckets)
        if not 0 < num_buckets <= MAX_BUCKETS:
            raise ConfigError(
                f"HashedCategorify on {name!r} has {num_buckets} buckets for unseen values, expected 1 to "
                f"{MAX_BUCKETS}."
            )
        return num_buckets

    def fit(self, col_selector: nvt.ColumnSelector, ddf: Any) -> Any:
        """Build the vocabularies.

        Raises:
            ConfigError: columns are grouped.
        """
        if groups := [group.names for group in col_selector.subgroups if len(group.names) > 1]:
            raise ConfigError(f"HashedCategorify got column groups {groups}, expected single columns.")
        return super().fit(col_selector, ddf)

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Encode the selected columns and assign unseen values to hash buckets."""
        result = df.copy(deep=False)
        for name in col_selector.names:
            flat, rebuild = flattened(df[name])
            ids = super().transform(nvt.ColumnSelector([name]), flat.to_frame())[name].to_numpy(copy=True)
            num_buckets = self.buckets_of(name)
            unseen = (ids >= FIRST_UNSEEN_ID) & (ids < FIRST_UNSEEN_ID + num_buckets)
            ids[unseen] = FIRST_UNSEEN_ID + bucket_of(plain_values(flat[unseen]), num_buckets)
            result[name] = rebuild(ids)
        return result


class KnownIds(ops.Operator):  # type: ignore[misc]
    """An operator that passes encoded ids through as int64 and replaces missing or out-of-range ids with 0 (padding).

    Args:
        sizes: column → number of ids; valid ids are in [0, size).
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.sizes = dict(sizes)

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        result = df[col_selector.names].copy(deep=False)
        for name in col_selector.names:
            size, column = self.sizes[name], df[name]
            if len(column) and isinstance(column.iloc[0], list | np.ndarray):
                result[name] = pd.Series([_known_ids(row, size) for row in column], index=df.index, dtype=object)
            else:
                result[name] = _known_ids(column.to_numpy(), size)
        return result

    @property
    def output_dtype(self) -> Any:
        return np.int64


def _known_ids(values: Any, size: int) -> NDArray[np.int64]:
    numbers = np.asarray(values)
    if numbers.dtype == object:  # the cast turns None into NaN
        numbers = numbers.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where((numbers >= 0) & (numbers < size), numbers, 0).astype(np.int64)
