"""Rows as `tf.train.Example` records: serialised from arrays, parsed to tensors.

A record has one of two layouts:

    row     a single column is a list of one value, a list column a list of any length
    block   several rows in one Example, the last of a file possibly fewer: a single column is the list of their
            values; a list column is all their values, and `name__nnzs` says how many each row has. Without it, as in
            files of NVIDIA's SIM for TensorFlow 2, each row has as many

Integers are `int64_list`, numbers `float_list`: float64 is stored as float32, which is what models get anyway.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError

from training.loader.stream import Batch
from workflows.errors import DataError
from workflows.feature_spec import Feature
from workflows.lists import Ragged, offsets_of
from workflows.tensor_names import NNZS, VALUES

INT64_LIST, FLOAT_LIST = "int64_list", "float_list"
TENSOR_DTYPES = {FLOAT_LIST: tf.float32, INT64_LIST: tf.int64}

_KINDS = {"f": FLOAT_LIST, "i": INT64_LIST, "u": INT64_LIST, "b": INT64_LIST}
_MESSAGES = {FLOAT_LIST: "FloatList", INT64_LIST: "Int64List"}
_ENCODED_RECORDS = 1 << 12  # at a time, since lists are padded meanwhile


def list_kind(feature: Feature) -> str:
    """Which list of an Example holds a feature: "int64_list" or "float_list".

    Raises:
        DataError: neither can.
    """
    kind = _KINDS.get(np.dtype(feature.dtype).kind)
    if kind is None:
        raise DataError(f"feature {feature.name!r} is {feature.dtype}, expected whole or float numbers.")
    return kind


# --- Arrays to records


@dataclass(frozen=True, kw_only=True)
class _ValueLists:
    """One feature of many records: record i has values[bounds[i] : bounds[i + 1]]."""

    values: npt.NDArray[Any]
    bounds: npt.NDArray[np.int64]


def serialize(batch: Batch, features: Sequence[Feature], *, prebatch: int, path: Path) -> Iterator[bytes]:
    """Serialised Examples of some rows.

    TensorFlow encodes whole columns: `tf.train.Example` makes an object per value, and takes twenty times as long.

    Args:
        batch: the columns.
        features: which of them to write.
        prebatch: rows per record; above 1 in the block layout.
        path: where the rows come from, for messages.

    Raises:
        DataError: a column does not fit its feature.
    """
    lists: dict[str, _ValueLists] = {}
    for feature in features:
        lists |= _value_lists(batch[feature.name], feature, prebatch, path)
    num_records = len(next(iter(lists.values())).bounds) - 1
    for start, stop in pairwise([*range(0, num_records, _ENCODED_RECORDS), num_records]):
        entries = [_entries(name, lists[name], start, stop) for name in sorted(lists)]
        sizes = tf.fill((stop - start, 1), len(entries))
        maps = tf.io.encode_proto(sizes, [tf.stack(entries, axis=1)], ["feature"], "tensorflow.Features")
        yield from _messages("Example", features=maps).numpy()


def _entries(name: str, lists: _ValueLists, start: int, stop: int) -> Any:
    """Serialise a feature of the records from `start` up to `stop`, as entries of their maps."""
    kind = FLOAT_LIST if lists.values.dtype.kind == "f" else INT64_LIST
    bounds = lists.bounds[start : stop + 1]
    values = tf.RaggedTensor.from_row_splits(lists.values[bounds[0] : bounds[-1]], bounds - bounds[0])
    sizes = tf.cast(values.row_lengths()[:, None], tf.int32)
    encoded = tf.io.encode_proto(sizes, [values.to_tensor()], ["value"], f"tensorflow.{_MESSAGES[kind]}")
    return _messages(
        "Features.FeatureEntry", key=tf.fill((stop - start,), name), value=_messages("Feature", **{kind: encoded})
    )


def _messages(kind: str, **fields: Any) -> Any:
    """Serialise messages with one text in each field, (R,)."""
    (num_records,) = next(iter(fields.values())).shape
    sizes = tf.ones((num_records, len(fields)), tf.int32)
    return tf.io.encode_proto(sizes, [text[:, None] for text in fields.values()], list(fields), f"tensorflow.{kind}")


def _value_lists(column: Any, feature: Feature, prebatch: int, path: Path) -> dict[str, _ValueLists]:
    name, is_list = feature.name, isinstance(column, Ragged) or column.ndim > 1
    if is_list != feature.is_list:
        expected = "lists" if feature.is_list else "single values"
        raise DataError(f"{path}: column {name!r} does not hold {expected}, as the feature spec says.")
    values = column.values if isinstance(column, Ragged) else column.reshape(-1)
    dtype = TENSOR_DTYPES[list_kind(feature)].as_numpy_dtype
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise DataError(f"{path}: column {name!r} is {values.dtype}, the feature spec says {feature.dtype}.")
    values = values.astype(dtype, copy=False)
    nnzs = column.lengths if isinstance(column, Ragged) else np.full(len(column), column[:1].size)
    records = np.minimum(np.arange(0, len(nnzs) + prebatch, prebatch), len(nnzs))
    lists = {name: _ValueLists(values=values, bounds=offsets_of(nnzs)[records])}
    if is_list and prebatch > 1:
        lists[name + NNZS] = _ValueLists(values=nnzs.astype(np.int64), bounds=records)
    return lists


# --- Records to tensors


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How records are to be parsed.

    Attributes:
        features: the columns to read.
        counted: a single column of them; its values say how many rows a record has.
        block_rows: rows of a whole record; above 1 in the block layout.
        has_nnzs: list columns come with `name__nnzs`, as they do in the block layout.

    Raises:
        DataError: a feature has a `null_fill` that its type cannot hold.
    """

    features: tuple[Feature, ...]
    counted: Feature
    block_rows: int
    has_nnzs: bool

    def __post_init__(self) -> None:
        for feature in self.features:
            fill = self._fill(feature)
            if fill is not None and list_kind(feature) == INT64_LIST and not float(fill).is_integer():
                raise DataError(
                    f"feature {feature.name!r} is {feature.dtype}, which cannot hold its null_fill, {fill}."
                )

    @property
    def is_block(self) -> bool:
        """Whether a record may hold several rows."""
        return self.has_nnzs or self.block_rows > 1

    def num_records(self, num_rows: int) -> int:
        """How many records hold about `num_rows` rows, at least one."""
        return max(1, num_rows // self.block_rows)

    def parse(self, serialized: Any) -> dict[str, Any]:
        """Tensors of many records at once, in a graph or eagerly.

        Args:
            serialized: strings of shape (R,).

        Returns:
            `name` of shape (N, 1); for a list column `name__values` (M, 1) and `name__nnzs` (N, 1), int32. Integers
            are int64, numbers float32.

        Raises:
            tf.errors.InvalidArgumentError: a record is not as expected; `check` says which feature.
        """
        parsers = {feature.name: self._parser(feature) for feature in self.features}
        if self.has_nnzs:
            parsers |= {f.name + NNZS: tf.io.RaggedFeature(tf.int64) for f in self.features if f.is_list}
        parsed = tf.io.parse_example(serialized, parsers)
        tensors: dict[str, Any] = {}
        for feature in self.features:
            column, name = parsed[feature.name], feature.name
            if not feature.is_list:
                tensors[name] = self._per_row(column, parsed, self._fill(feature))
                _assert_ids(tensors[name], feature)
                continue
            _assert_ids(column.values, feature)
            tensors[name + VALUES] = _as_column(column.values)
            nnzs = column.row_lengths()
            if self.has_nnzs:
                of_rows = parsed[name + NNZS]
                tf.debugging.assert_equal(tf.reduce_sum(of_rows, axis=1), tf.cast(nnzs, tf.int64), message=name)
                nnzs = self._per_row(of_rows, parsed)
            elif self.is_block:
                rows = parsed[self.counted.name].row_lengths()
                tf.debugging.assert_equal(nnzs, nnzs // tf.maximum(rows, 1) * rows, message=name)
                nnzs = tf.repeat(nnzs // tf.maximum(rows, 1), rows)
            tensors[name + NNZS] = _as_column(tf.cast(nnzs, tf.int32))
        return tensors

    def _parser(self, feature: Feature) -> Any:
        dtype = TENSOR_DTYPES[list_kind(feature)]
        may_lack = feature.is_list or self.is_block or self._fill(feature) is not None
        return tf.io.RaggedFeature(dtype) if may_lack else tf.io.FixedLenFeature((1,), dtype)

    def _fill(self, feature: Feature) -> float | None:
        """Return the value of a column that a record lacks; None if a record cannot lack it."""
        is_counted = self.is_block and feature.name == self.counted.name
        return None if feature.is_list or is_counted else feature.null_fill

    def _per_row(self, column: Any, parsed: Mapping[str, Any], fill: float | None = None) -> Any:
        if not isinstance(column, tf.RaggedTensor):
            return column
        rows = parsed[self.counted.name].row_lengths() if self.is_block else tf.ones_like(column.row_lengths())
        if fill is not None:
            lacking = tf.where(column.row_lengths() == 0, rows, 0)
            filled = tf.fill((tf.reduce_sum(lacking),), tf.cast(fill, column.dtype))
            column = tf.concat([column, tf.RaggedTensor.from_row_lengths(filled, lacking)], axis=1)
        tf.debugging.assert_equal(column.row_lengths(), rows, message="features of a record differ in length")
        return _as_column(column.values)

    def check(self, record: Mapping[str, Any], where: str) -> None:
        """Compare one record with what is expected.

        Args:
            record: what `decode` returned.
            where: names its file and its number, for messages.

        Raises:
            DataError: a feature is missing, of another type, has another number of values, or an id out of range.
        """
        num_rows = num_values(record, self.counted.name) if self.is_block else 1
        for feature in self.features:
            name, nnzs, count = feature.name, feature.name + NNZS, num_rows
            if feature.is_list and not self.has_nnzs:
                if name in record:  # or else it is empty
                    _check_kind(record, name, list_kind(feature), where)
                    _check_ids(record, feature, where)
                if (count := num_values(record, name)) % max(num_rows, 1):
                    raise DataError(
                        f"{where}: feature {name!r} has {count} values for {num_rows} rows, expected as many for each, "
                        f"or their numbers in {nnzs!r}."
                    )
                continue
            if feature.is_list:
                _check_values(record, nnzs, INT64_LIST, num_rows, where)
                count = sum(record[nnzs].int64_list.value)
            elif self._fill(feature) is not None and not num_values(record, name):
                continue
            _check_values(record, name, list_kind(feature), count, where)
            _check_ids(record, feature, where)


def decode(record: bytes, where: str) -> Mapping[str, Any]:
    """The features of one record by name.

    Raises:
        DataError: it is no Example.
    """
    try:
        features: Mapping[str, Any] = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        raise DataError(f"{where} is not a tf.train.Example. Give files of Examples.") from None
    return features


def num_values(record: Mapping[str, Any], name: str) -> int:
    """How many values a feature of a decoded record has; none if it is not there."""
    kind = record[name].WhichOneof("kind") if name in record else None
    return len(getattr(record[name], kind).value) if kind else 0


def _check_values(record: Mapping[str, Any], name: str, kind: str, count: int, where: str) -> None:
    if name not in record:
        raise DataError(
            f"{where} lacks feature {name!r}. Available: {sorted(record)}. Write it, or set its null_fill in the spec."
        )
    _check_kind(record, name, kind, where)
    if (found := num_values(record, name)) != count:
        raise DataError(f"{where}: feature {name!r} has {found} values, expected {count}.")


def _check_kind(record: Mapping[str, Any], name: str, kind: str, where: str) -> None:
    if (found := record[name].WhichOneof("kind")) not in (kind, None):
        raise DataError(f"{where}: feature {name!r} is {found}, expected {kind} by its dtype in the feature spec.")


def _check_ids(record: Mapping[str, Any], feature: Feature, where: str) -> None:
    if feature.cardinality is None:
        return
    values = record[feature.name].int64_list.value
    if wrong := [value for value in values if not 0 <= value < feature.cardinality]:
        raise DataError(
            f"{where}: feature {feature.name!r} holds the id {wrong[0]}, the feature spec says 0 to "
            f"{feature.cardinality - 1}. Correct the data or its cardinality."
        )


def _assert_ids(values: Any, feature: Feature) -> None:
    if feature.cardinality is not None:
        in_range = tf.reduce_all((values >= 0) & (values < feature.cardinality))
        tf.debugging.Assert(in_range, [f"an id of {feature.name} is out of range"])


def _as_column(values: Any) -> Any:
    return tf.reshape(values, (-1, 1))
