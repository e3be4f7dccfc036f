"""Rows as `tf.train.Example` records: serialised from arrays, parsed to tensors.

A record has one of two layouts:

    row     a single column is a list of one value, a list column a list of any length
    block   several rows in one Example, the last of a file possibly fewer: a single column is the list of their
            values; a list column is all their values, and `name__nnzs` says how many each row has. Without it, as in
            files of NVIDIA's SIM for TensorFlow 2, each row has as many

Integers are `int64_list`, numbers `float_list`: float64 is stored as float32, which is what models get anyway.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
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
_BINARY = pa.large_binary()
# Tags of protobuf's wire format: field number and "length-delimited".
_FIELD_1, _FIELD_2 = b"\x0a", b"\x12"
_LIST_TAGS = {FLOAT_LIST: b"\x12", INT64_LIST: b"\x1a"}


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


def serialize(batch: Batch, features: Sequence[Feature], *, prebatch: int, path: Path) -> pa.LargeBinaryArray:
    """Serialised Examples of some rows, the same bytes as protobuf's deterministic serialisation.

    Not by `tf.train.Example`, which makes an object per value: of rows with 40 columns it writes a twentieth as many.

    All bytes of a feature before its values follow from how many bytes the values take. They are made once for each
    such number that occurs, and Arrow joins everything.

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
    fragments: list[Any] = []
    num_bytes: Any = 0
    for name in sorted(lists, key=str.encode):
        kind = FLOAT_LIST if lists[name].values.dtype.kind == "f" else INT64_LIST
        packed = _packed(lists[name])
        sizes = pc.binary_length(packed).to_numpy()
        headers = _for_each_size(sizes, lambda size, name=name, kind=kind: _header(name, kind, size))  # type: ignore[misc]
        fragments += [headers, packed]
        num_bytes = num_bytes + pc.binary_length(headers).to_numpy() + sizes
    starts = _for_each_size(num_bytes, lambda size: _delimited(_FIELD_1, b"", size))
    return pc.binary_join_element_wise(starts, *fragments, pa.scalar(b"", _BINARY))


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


def _packed(lists: _ValueLists) -> pa.LargeBinaryArray:
    if lists.values.dtype.kind == "f":
        data = np.ascontiguousarray(lists.values, "<f4").view(np.uint8)
        return _binary(data, lists.bounds * 4)
    data, sizes = _varints(lists.values)
    return _binary(data, offsets_of(sizes)[lists.bounds])


def _varints(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Base-128 varints, as protobuf has them: all bytes in a row, and how many each value takes."""
    words = np.ascontiguousarray(values, np.int64).view(np.uint64)
    width = max(1, -(-int(words.max(initial=0)).bit_length() // 7))
    groups = words[:, None] >> (np.arange(width, dtype=np.uint64) * np.uint64(7))
    used = groups != 0
    used[:, 0] = True
    digits = (groups & np.uint64(0x7F)).astype(np.uint8)
    digits[:, :-1] |= used[:, 1:].astype(np.uint8) << np.uint8(7)  # the flag that another byte follows
    return digits[used], used.sum(axis=1)


def _header(name: str, kind: str, num_bytes: int) -> bytes:
    """What comes before `num_bytes` of packed values: the map entry, its key, the Feature and its list."""
    header = _delimited(_FIELD_1, b"", num_bytes) if num_bytes else b""
    header = _delimited(_LIST_TAGS[kind], header, num_bytes)
    header = _delimited(_FIELD_2, header, num_bytes)
    return _delimited(_FIELD_1, _delimited(_FIELD_1, name.encode()) + header, num_bytes)


def _delimited(tag: bytes, content: bytes, num_bytes_to_come: int = 0) -> bytes:
    """A field whose content goes on with bytes that follow elsewhere."""
    length, _ = _varints(np.array([len(content) + num_bytes_to_come]))
    return tag + length.tobytes() + content


def _for_each_size(sizes: npt.NDArray[np.int64], make: Callable[[int], bytes]) -> pa.LargeBinaryArray:
    encoded = pa.array(sizes).dictionary_encode()
    return pa.array([make(size) for size in encoded.dictionary.to_pylist()], _BINARY).take(encoded.indices)


def _binary(data: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds, np.int64)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(_BINARY, len(bounds) - 1, buffers)


# --- Records to tensors


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How records are to be parsed.

    Attributes:
        features: the columns to read.
        counted: a single column of them; its values say how many rows a record has.
        block_rows: rows of a whole record; above 1 in the block layout.
        has_nnzs: list columns come with `name__nnzs`, as they do in the block layout.
    """

    features: tuple[Feature, ...]
    counted: Feature
    block_rows: int
    has_nnzs: bool

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
            _assert_ids(column, feature)
            if not feature.is_list:
                tensors[name] = self._per_row(column, parsed)
                continue
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
        return tf.io.RaggedFeature(dtype) if feature.is_list or self.is_block else tf.io.FixedLenFeature((1,), dtype)

    def _per_row(self, column: Any, parsed: Mapping[str, Any]) -> Any:
        if not self.is_block:
            return column
        rows = parsed[self.counted.name].row_lengths()
        tf.debugging.assert_equal(column.row_lengths(), rows, message="features of a record differ in length")
        return _as_column(column.values)

    def check(self, record: Mapping[str, Any], path: Path) -> None:
        """Compare one record with what is expected.

        Args:
            record: what `decode` returned.
            path: its file.

        Raises:
            DataError: a feature is missing, of another type, has another number of values, or an id out of range.
        """
        num_rows = num_values(record, self.counted.name) if self.is_block else 1
        for feature in self.features:
            name, nnzs, count = feature.name, feature.name + NNZS, num_rows
            if feature.is_list and not self.has_nnzs:
                if name in record:  # or else it is empty
                    _check_kind(record, name, list_kind(feature), path)
                    _check_ids(record, feature, path)
                if (count := num_values(record, name)) % max(num_rows, 1):
                    raise DataError(
                        f"{path}: feature {name!r} of a record has {count} values for {num_rows} rows, expected as "
                        f"many for each, or their numbers in {nnzs!r}."
                    )
                continue
            if feature.is_list:
                _check_values(record, nnzs, INT64_LIST, num_rows, path)
                count = sum(record[nnzs].int64_list.value)
            _check_values(record, name, list_kind(feature), count, path)
            _check_ids(record, feature, path)


def decode(record: bytes, path: Path) -> Mapping[str, Any]:
    """The features of one record by name.

    Raises:
        DataError: it is no Example.
    """
    try:
        features: Mapping[str, Any] = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        raise DataError(f"{path} holds a record that is not a tf.train.Example. Give files of Examples.") from None
    return features


def num_values(record: Mapping[str, Any], name: str) -> int:
    """How many values a feature of a decoded record has; none if it is not there."""
    kind = record[name].WhichOneof("kind") if name in record else None
    return len(getattr(record[name], kind).value) if kind else 0


def _check_values(record: Mapping[str, Any], name: str, kind: str, count: int, path: Path) -> None:
    if name not in record:
        raise DataError(f"{path}: a record lacks feature {name!r}. Available: {sorted(record)}.")
    _check_kind(record, name, kind, path)
    if (found := num_values(record, name)) != count:
        raise DataError(f"{path}: feature {name!r} of a record has {found} values, expected {count}.")


def _check_kind(record: Mapping[str, Any], name: str, kind: str, path: Path) -> None:
    if (found := record[name].WhichOneof("kind")) not in (kind, None):
        raise DataError(f"{path}: feature {name!r} is {found}, expected {kind} by its dtype in the feature spec.")


def _check_ids(record: Mapping[str, Any], feature: Feature, path: Path) -> None:
    if feature.cardinality is None:
        return
    values = record[feature.name].int64_list.value
    if wrong := [value for value in values if not 0 <= value < feature.cardinality]:
        raise DataError(
            f"{path}: feature {feature.name!r} holds the id {wrong[0]}, the feature spec says 0 to "
            f"{feature.cardinality - 1}. Correct the data or its cardinality."
        )


def _assert_ids(column: Any, feature: Feature) -> None:
    if feature.cardinality is not None:
        values = column.values if isinstance(column, tf.RaggedTensor) else column
        in_range = tf.reduce_all((values >= 0) & (values < feature.cardinality))
        tf.debugging.Assert(in_range, [f"an id of {feature.name} is out of range"])


def _as_column(values: Any) -> Any:
    return tf.reshape(values, (-1, 1))
