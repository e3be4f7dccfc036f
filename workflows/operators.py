"""NVTabular operators that NVTabular 23.8 lacks, or does wrongly on a CPU.

Each is importable by name, so a saved workflow refers to it and holds no code. Those that serving
graphs hold have a lowering in `serving/lowerings`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from workflows.categories import FIRST_UNSEEN_ID
from workflows.errors import ConfigError
from workflows.hashing import bucket_of, bucket_of_many, hash_values
from workflows.upstream import nvt, ops  # first, so that what it imports is imported quietly

from merlin.schema import Tags  # isort: skip


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


class GreaterThan(ops.Operator):  # type: ignore[misc]
    """1.0 where a number is above `threshold`, else 0.0: a graded label made binary.

    Args:
        threshold: the largest value that still counts as negative.
    """

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Apply to each selected column."""
        return (df[col_selector.names] > self.threshold).astype("float32")

    @property
    def output_dtype(self) -> Any:
        """float32, what a loss wants."""
        return np.float32

    @property
    def output_tags(self) -> list[Tags]:
        """Marks the column as a target."""
        return [Tags.TARGET]


class Bucketize(ops.Bucketize):  # type: ignore[misc]
    """`Bucketize` that can be saved as data: NVTabular's own keeps its boundaries in a function.

    Args:
        boundaries: sorted numbers for all columns, or column → sorted numbers.
    """

    def __init__(self, boundaries: Sequence[float] | Mapping[str, Sequence[float]]) -> None:
        by_column = isinstance(boundaries, Mapping)
        super().__init__(dict(boundaries) if by_column else list(boundaries))  # type: ignore[arg-type]
        self._given = boundaries

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)


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
        if not 0 < self.max_elements < LONGEST_SLICE:
            raise ConfigError(f"ListSlice({start}, {end}) has no longest slice to pad to. Give a start and an end.")

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


class HashedCategorify(ops.Categorify):  # type: ignore[misc]
    """`Categorify` whose unseen values fall into `num_buckets` buckets by their own hash.

    NVTabular 23.8 hashes the row's position together with the value on a CPU (dask's `hash_object_dispatch` includes
    the index), so the same unseen value gets another id in every row and nothing can be served that matches training.
    Ids: 0 padding, 1 null, 2 … num_buckets + 1 unseen, then the vocabulary by frequency.
    """

    def buckets_of(self, name: str) -> int:
        """Buckets of a column."""
        return int(self.num_buckets[name] if isinstance(self.num_buckets, dict) else self.num_buckets)

    def fit(self, col_selector: nvt.ColumnSelector, ddf: Any) -> Any:
        """Make the vocabularies.

        Raises:
            ConfigError: columns are grouped.
        """
        if groups := [group.names for group in col_selector.subgroups if len(group.names) > 1]:
            raise ConfigError(f"HashedCategorify got groups of columns {groups}, expected columns to encode alone.")
        return super().fit(col_selector, ddf)

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Encode, then mend the ids of unseen values."""
        result = df.copy(deep=False)
        for name in col_selector.names:
            flat, rebuild = _flattened(df[name])
            ids = super().transform(nvt.ColumnSelector([name]), flat.to_frame())[name].to_numpy(copy=True)
            num_buckets = self.buckets_of(name)
            unseen = (ids >= FIRST_UNSEEN_ID) & (ids < FIRST_UNSEEN_ID + num_buckets)
            ids[unseen] = FIRST_UNSEEN_ID + bucket_of(_values(flat[unseen]), num_buckets)
            result[name] = rebuild(ids)
        return result


class StableHashBucket(ops.HashBucket):  # type: ignore[misc]
    """`HashBucket` by the hash of the value alone; see `HashedCategorify` for why. A missing value hashes to 0."""

    def buckets_of(self, name: str) -> int:
        """Buckets of a column."""
        return int(self.num_buckets[name] if isinstance(self.num_buckets, dict) else self.num_buckets)

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Hash each selected column."""
        result = df.copy(deep=False)
        for name in col_selector.names:
            flat, rebuild = _flattened(df[name])
            buckets = bucket_of_many([_hashes(flat)], self.buckets_of(name))
            result[name] = rebuild(buckets.astype(self.output_dtype))
        return result


class StableHashedCross(ops.HashedCross):  # type: ignore[misc]
    """`HashedCross` by the hashes of the values alone; see `HashedCategorify` for why. A missing value hashes to 0."""

    def crosses(self, selector: nvt.ColumnSelector) -> list[tuple[str, ...]]:
        """The groups of columns that it hashes together."""
        return [tuple(group) for group in self.column_mapping(selector).values()]

    def buckets_of(self, cross: tuple[str, ...]) -> int:
        """Buckets of a group."""
        return int(self.num_buckets[cross] if isinstance(self.num_buckets, dict) else self.num_buckets)

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Hash each group."""
        return pd.DataFrame(
            {
                "_X_".join(cross): bucket_of_many([_hashes(df[name]) for name in cross], self.buckets_of(cross)).astype(
                    self.output_dtype
                )
                for cross in self.crosses(col_selector)
            },
            index=df.index,
        )


def _flattened(series: "pd.Series[Any]") -> "tuple[pd.Series[Any], Callable[[NDArray[Any]], Any]]":
    """The elements of a column of lists, and what makes lists of as many values; other columns as they are."""
    if not len(series) or not isinstance(series.iloc[0], list | np.ndarray):
        return series.reset_index(drop=True), lambda values: values
    ends = np.cumsum([len(row) for row in series])
    flat = pd.Series([value for row in series for value in row], name=series.name)

    def rebuild(values: NDArray[Any]) -> "pd.Series[Any]":
        return pd.Series(np.split(values, ends[:-1]), index=series.index, dtype=object)

    return flat, rebuild


def _hashes(series: "pd.Series[Any]") -> NDArray[np.uint64]:
    """Hash of each value, 0 where it is missing."""
    hashes = np.zeros(len(series), dtype=np.uint64)
    present = series.notna().to_numpy()
    hashes[present] = hash_values(_values(series[present]))
    return hashes


def _values(series: "pd.Series[Any]") -> Any:
    """Numbers or UTF-8 strings, none of them missing."""
    is_string = series.dtype == object and isinstance(next(iter(series), None), str)
    return pa.array(series, pa.large_binary()) if is_string else series.to_numpy(series.infer_objects().dtype)
