"""NVTabular operators that NVTabular 23.8 lacks, or does wrongly on a CPU.

Each is importable by name, so a saved workflow refers to it and holds no code. Those that serving
graphs hold have a lowering in `serving/lowerings`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from dask.delayed import delayed
from numpy.typing import NDArray

from workflows.categories import FIRST_UNSEEN_ID, MOST_BUCKETS, NULL_ID
from workflows.choices import LONGEST_PADDED
from workflows.errors import ConfigError, DataError
from workflows.hashing import bucket_of, bucket_of_many, hash_values
from workflows.hexadecimal import numbers_of_hex
from workflows.plain_values import is_text
from workflows.upstream import nvt, ops  # first, so that what it imports is imported quietly
from workflows.vocabulary_files import read_vocabulary

from merlin.dag import iter_nodes  # isort: skip
from merlin.dag.ops.concat_columns import ConcatColumns  # isort: skip
from merlin.io.worker import get_worker_cache  # isort: skip
from merlin.schema import Tags  # isort: skip
from nvtabular.ops.categorify import _write_uniques  # isort: skip


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


class HexToInt(ops.Operator):  # type: ignore[misc]
    """Whole numbers of hexadecimal strings, which are smaller and faster to encode than the strings.

    What is missing stays missing, and anything but a number of 1 to 15 hexadecimal digits becomes so. The column is
    float64, whose NaN is what all other operators take for missing: an integer column would be int64 in one part of
    the data and float64 in another, and a vocabulary of the first refuses the second. Numbers of up to 13 digits are
    exact; longer ones are rounded to 53 bits, in training as in serving.

    A dictionary of Arrow's stays one, of numbers, each of them once: see `arrow_columns` for who reads it.
    """

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Apply to each selected column of strings, lists of strings or categories."""
        result = df[col_selector.names].copy(deep=False)
        for name in col_selector.names:
            flat, rebuild = flattened(df[name])
            if (encoded := _arrow_dictionary(flat)) is not None:
                result[name] = pd.arrays.ArrowExtensionArray(_dictionary_of_hex(encoded))
            elif isinstance(flat.dtype, pd.CategoricalDtype):
                # A missing value has the code -1, which takes the last.
                result[name] = rebuild(
                    np.append(_numbers_of_hex(flat.cat.categories), np.nan)[flat.cat.codes.to_numpy()]
                )
            else:
                result[name] = rebuild(_numbers_of_hex(flat))
        return result

    @property
    def output_dtype(self) -> Any:
        """float64."""
        return np.float64


class EmptyToNull(ops.Operator):  # type: ignore[misc]
    """Makes empty texts missing, and removes empty and missing texts from lists."""

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Apply to each selected column of strings or lists of strings."""
        result = df[col_selector.names].copy(deep=False)
        for name in col_selector.names:
            column = df[name]
            if (encoded := _arrow_dictionary(column)) is not None:
                empty = pc.index(encoded.dictionary, pa.scalar("", encoded.dictionary.type)).as_py()
                if empty >= 0:
                    indices = pc.if_else(pc.equal(encoded.indices, empty), None, encoded.indices)
                    made = pa.DictionaryArray.from_arrays(indices, encoded.dictionary)
                    result[name] = pd.Series(pd.arrays.ArrowExtensionArray(made), index=df.index)
            elif any(isinstance(value, list | np.ndarray) for value in column.head(1)):
                rows = [[value for value in row if isinstance(value, str) and value] for row in column]
                result[name] = pd.Series(rows, index=df.index, dtype=object)
            else:
                result[name] = column.where(column != "", None)
        return result


class Finite(ops.Operator):  # type: ignore[misc]
    """Replaces infinities, and floats too large for float32, by NaN: no model can compute with them."""

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Apply to each selected column; whole numbers stay as they are."""
        columns = df[col_selector.names]
        with np.errstate(over="ignore"):
            return columns.where(np.isfinite(columns.astype(np.float32)))


def arrow_columns(workflow: nvt.Workflow) -> list[str]:
    """Raw columns of strings which only operators read that take values as Arrow has them: see `frame_of`."""
    nodes = list(iter_nodes([workflow.output_node]))
    readers: dict[str, set[type]] = {}
    for node in nodes:
        for parent in node.parents_with_dependencies:
            if parent.selector is not None and not parent.parents_with_dependencies:
                for name in parent.selector.names:
                    readers.setdefault(name, set()).update(_readers(node, nodes))
    return sorted(name for name, kinds in readers.items() if kinds <= _TAKE_ARROW)


def _readers(node: Any, nodes: Sequence[Any]) -> set[type]:
    """Class of a node's operator; of one that hands on what Arrow has, those of the nodes behind it."""
    if type(node.op) not in _PASS_ON:
        return {type(node.op)}
    behind = [other for other in nodes if any(parent is node for parent in other.parents_with_dependencies)]
    return set().union(*(_readers(other, nodes) for other in behind)) if behind else {type(node.op)}


def frame_of(table: pa.Table, arrow: Sequence[str]) -> pd.DataFrame:
    """A table as pandas has it, but for some columns, whose strings, if they hold any, are not made Python objects.

    These come last, so that columns of one dtype stay one block, which NVTabular's operators are faster with.
    """
    texts = [name for name in arrow if holds_text(table.schema.field(name).type)]
    frame = table.drop_columns(texts).to_pandas()
    made = {name: pd.Series(pd.arrays.ArrowExtensionArray(table[name]), index=frame.index) for name in texts}
    return pd.concat([frame, pd.DataFrame(made, copy=False)], axis=1, copy=False) if texts else frame


def holds_text(kind: pa.DataType) -> bool:
    """Strings, or a dictionary of some."""
    return is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _numbers_of_hex(series: "pd.Series[Any]") -> NDArray[np.float64]:
    if isinstance(series.dtype, pd.ArrowDtype):
        values = _whole(pa.array(series)).cast(pa.large_binary())
    else:
        values = pa.array(series.to_numpy(dtype=object, na_value=None), pa.large_binary(), from_pandas=True)
    return numbers_of_hex(values.fill_null(b""))


def _dictionary_of_hex(strings: pa.DictionaryArray) -> pa.DictionaryArray:
    """Numbers of hexadecimal strings, null for what is none; strings may be of one number, as 0a and A."""
    numbers = numbers_of_hex(strings.dictionary.cast(pa.large_binary()).fill_null(b""))
    distinct = pa.array(numbers, from_pandas=True).dictionary_encode()
    is_same = len(distinct.dictionary) == len(numbers)
    indices = strings.indices if is_same else distinct.indices.take(strings.indices)
    return pa.DictionaryArray.from_arrays(indices, distinct.dictionary, safe=False)  # they come from a dictionary


class Categorify(ops.Categorify):  # type: ignore[misc]
    """`Categorify` that counts and encodes faster, and takes columns of which a whole part is missing.

    NVTabular 23.8 groups each part by each column, merges it with the vocabulary, numbers that may be missing as Python
    objects, and looks at the first value that is there, which fails where there is none. Vocabularies, which its own
    functions write, and ids are the same.
    """

    def fit(self, col_selector: nvt.ColumnSelector, ddf: Any) -> Any:
        """Count the values of each column."""
        if self.vocabs or not self._is_simple(col_selector):
            return super().fit(col_selector, ddf)
        parts = [delayed(_counts)(part, col_selector.names) for part in ddf.to_delayed()]
        while len(parts) > 1:
            groups = range(0, len(parts), _PARTS_AT_ONCE)
            parts = [delayed(_summed)(parts[first : first + _PARTS_AT_ONCE]) for first in groups]
        return parts[0]

    def fit_finalize(self, categories: Any) -> None:
        """Write the vocabularies of what was counted.

        Raises:
            DataError: a column is missing in all rows.
        """
        if counted := {name: value for name, value in categories.items() if isinstance(value, pd.DataFrame)}:
            options = self._create_fit_options_from_columns(list(counted))
            directory = Path(self.out_path) / options.stat_name
            directory.mkdir(parents=True, exist_ok=True)
            for name, counts in counted.items():
                selector = nvt.ColumnSelector([name])
                categories[name] = _write_uniques([counts], str(directory), selector, options, cpu=True)
        if empty := [name for name, path in categories.items() if not Path(path).exists()]:
            raise DataError(
                f"columns {empty} are missing in every training row, so there is nothing to encode. "
                "Give more rows, or leave the columns out."
            )
        super().fit_finalize(categories)

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Encode each selected column or group of columns."""
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
        """Ids of a column that holds numbers, what Arrow has, or nothing; None for others."""
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
            with np.errstate(invalid="ignore"):  # a number that is too large becomes one that does not equal it
                keys = values.astype(vocabulary.index.dtype)
            position = vocabulary.index.get_indexer(keys)
            known = (position >= 0) & (keys == values)  # a fraction is no whole number of the vocabulary
            found = np.full(len(values), FIRST_UNSEEN_ID, dtype=ids.dtype)
            found[known] = vocabulary.to_numpy()[position[known]]
            ids[present] = found
        return ids

    def _ids_of_arrow(self, name: str, column: "pd.Series[Any]") -> NDArray[Any] | None:
        """Each distinct value is looked up once."""
        encoded = _encoded(column)
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
        """Value → id, kept in NVTabular's own cache, which is emptied where vocabularies change."""
        path = self.categories[name]
        with get_worker_cache("vocabularies") as cache:
            if path not in cache:
                frame = read_vocabulary(path, [name])
                num_unseen = self.num_buckets[name] if isinstance(self.num_buckets, dict) else self.num_buckets or 1
                first = FIRST_UNSEEN_ID + num_unseen
                ids = frame.index.to_numpy()
                cache[path] = pd.Series(
                    ids + first if len(ids) and ids[0] < first else ids, index=pd.Index(frame[name])
                )
            return cache[path]


_PARTS_AT_ONCE = 8


def _counts(df: pd.DataFrame, names: Sequence[str]) -> dict[str, pd.DataFrame]:
    """How often each value of each column occurs, missing ones together, in columns named as NVTabular does."""
    counts = {}
    for name in names:
        values, _ = flattened(df[name])
        if (encoded := _arrow_dictionary(values)) is not None:
            distinct, sizes = _counts_of_dictionary(encoded)
        else:
            values = values + 0.0 if values.dtype.kind == "f" else values  # Arrow tells the two zeros apart
            distinct, sizes = pa.array(values, from_pandas=True).value_counts().flatten()
        counts[name] = pd.DataFrame({name: distinct.to_pandas(), f"{name}_size": sizes.to_pandas()})
    return counts


def _counts_of_dictionary(values: pa.DictionaryArray) -> tuple[pa.Array, pa.Array]:
    """Each value that occurs, null too, and how often."""
    codes = values.indices.fill_null(len(values.dictionary)).to_numpy()
    sizes = np.bincount(codes, minlength=len(values.dictionary) + 1)
    occur = np.flatnonzero(sizes)
    return values.dictionary.take(pa.array(occur, mask=occur == len(values.dictionary))), pa.array(sizes[occur])


def _encoded(series: "pd.Series[Any]") -> pa.DictionaryArray:
    """Values as Arrow has them, each distinct one once."""
    whole = _whole(pa.array(series))
    return whole if isinstance(whole, pa.DictionaryArray) else whole.dictionary_encode()


def _whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _arrow_dictionary(series: "pd.Series[Any]") -> pa.DictionaryArray | None:
    """A column that holds a dictionary as Arrow has it; None for others."""
    kind = series.dtype
    return _encoded(series) if isinstance(kind, pd.ArrowDtype) and pa.types.is_dictionary(kind.pyarrow_dtype) else None


def _decoded(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values


def _summed(parts: Sequence[Mapping[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """The counts of several parts together."""
    return {
        name: pd.concat([part[name] for part in parts]).groupby(name, dropna=False, sort=False).sum().reset_index()
        for name in parts[0]
    }


class OrderedCategorify(Categorify):
    """`Categorify` of numbers whose ids follow the values, the smallest first: what splits ids splits numbers then.

    By frequency, as NVTabular orders them, a forest needs a leaf for each hour of a day that it could cut in two.
    """

    def fit_finalize(self, categories: Any) -> None:
        """Write the vocabularies of what was counted; errors as of `Categorify`."""
        super().fit_finalize(categories)
        for name, path in self.categories.items():
            counted = pd.read_parquet(path)
            counted.sort_values(name, kind="stable").set_index(counted.index).to_parquet(path)


class HashedCategorify(Categorify):
    """`Categorify` whose unseen values fall into `num_buckets` buckets by their own hash.

    NVTabular 23.8 hashes the row's position together with the value on a CPU (dask's `hash_object_dispatch` includes
    the index), so the same unseen value gets another id in every row and nothing can be served that matches training.
    Ids: 0 padding, 1 null, 2 … num_buckets + 1 unseen, then the vocabulary by frequency.
    """

    def buckets_of(self, name: str) -> int:
        """Buckets of a column.

        Raises:
            ConfigError: they are more than a table of ids is made for.
        """
        num_buckets = int(self.num_buckets[name] if isinstance(self.num_buckets, dict) else self.num_buckets)
        if not 0 < num_buckets <= MOST_BUCKETS:
            raise ConfigError(
                f"HashedCategorify on {name!r} has {num_buckets} buckets for unseen values, expected 1 to "
                f"{MOST_BUCKETS}."
            )
        return num_buckets

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
            flat, rebuild = flattened(df[name])
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
            flat, rebuild = flattened(df[name])
            buckets = bucket_of_many([_hashes(flat)], self.buckets_of(name))
            result[name] = rebuild(buckets.astype(self.output_dtype))
        return result


class HashShare(StableHashBucket):
    """The name of `StableHashBucket` in workflows that earlier versions saved."""


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


class KnownIds(ops.Operator):  # type: ignore[misc]
    """Ids that are encoded already, as int64: those outside of the range, and missing ones, become 0, as padding is.

    Args:
        sizes: column → its ids are in [0, size).
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.sizes = dict(sizes)

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Apply to each selected column of numbers or lists of numbers."""
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
        """int64."""
        return np.int64


def _known_ids(values: Any, size: int) -> NDArray[np.int64]:
    numbers = np.asarray(values)
    if numbers.dtype == object:  # None is NaN then
        numbers = numbers.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where((numbers >= 0) & (numbers < size), numbers, 0).astype(np.int64)


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


def _frame(columns: Mapping[str, Any], index: pd.Index) -> pd.DataFrame:
    """Columns as a frame; arrays of one dtype as one block, which pandas otherwise copies together again and again."""
    arrays = list(columns.values())
    if arrays and all(isinstance(array, np.ndarray) and array.dtype == arrays[0].dtype for array in arrays):
        return pd.DataFrame(np.stack(arrays).T, columns=list(columns), index=index)
    return pd.DataFrame(dict(columns), index=index)


def flattened(series: "pd.Series[Any]") -> "tuple[pd.Series[Any], Callable[[NDArray[Any]], Any]]":
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
    if isinstance(series.dtype, pd.ArrowDtype):
        values = _decoded(_whole(pa.array(series)))
        return values.cast(pa.large_binary()) if is_text(values.type) else values.to_numpy()
    is_string = series.dtype == object and isinstance(next(iter(series), None), str)
    return pa.array(series, pa.large_binary()) if is_string else series.to_numpy(series.infer_objects().dtype)


_TAKE_ARROW = frozenset({Categorify, HashedCategorify, HashShare, OrderedCategorify})
_PASS_ON = frozenset({ConcatColumns, ops.Rename, EmptyToNull, HexToInt})
