"""TFRecord files of `tf.train.Example`: writing, reading with tf.data, and conversion back to Parquet.

A record has one of two layouts:

    row     a single-value column is a list of one value, a list column a list of any length
    block   several rows in one Example, possibly fewer in the last one of a file: a single-value column is the list of
            their values; a list column is all their values, with the number of values per row in `name__nnzs`. If that
            is missing, as in files of NVIDIA's SIM for TensorFlow 2, all rows of a record have equally long lists

Integers are `int64_list`, numbers `float_list`; float64 is stored as float32, which models use anyway. The first record
of each file determines the layout of the file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from rankline.training.data.loader.columns import arrow_schema, arrow_type, null_fills
from rankline.training.data.loader.stream import Batch, BatchStream, check_any_batch, check_reading
from rankline.training.data.loader.tensorflow import limit_tensorflow_memory
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from rankline.workflows.schema.ragged import Ragged, arrow_lists, offsets_of
from rankline.workflows.schema.tensor_names import NNZS, VALUES
from rankline.workflows.storage.artifacts import whole_file

SUFFIX = ".tfrecord"

_LISTS = {tf.int64: ("int64_list", "Int64List"), tf.float32: ("float_list", "FloatList")}
_ENCODED_RECORDS = 1 << 12  # encoded at a time; limits memory, because encoding pads lists
_BLOCK_ROWS = 1 << 16  # rows converted between formats at a time
_PARSED_ROWS = 1 << 15  # minimum number of rows of blocks to parse at a time
_READ_RECORDS = 1 << 12  # records that the shuffling reader takes from a file before moving to the next
_OPEN_FILES = 4
_READ_BUFFER_BYTES = 1 << 20
_MAX_SEARCHED_RECORDS = 1 << 12  # a list column must appear in these: many writers omit empty lists
_FRAME_BYTES = 16  # length and checksums of each record


def tensor_dtype(feature: Feature) -> Any:
    kind = np.dtype(feature.dtype).kind
    if kind not in "fiub":
        raise DataError(f"feature {feature.name!r} is {feature.dtype}, expected an integer, float or bool dtype.")
    return tf.float32 if kind == "f" else tf.int64


# --- Parquet to TFRecord and back


def write_tfrecords(
    files: Sequence[Path], spec: FeatureSpec, directory: Path, *, prebatch: int = 1, progress: Progress = SILENT
) -> list[Path]:
    """Write each Parquet file as a TFRecord file with the same rows in the same order."""
    if prebatch < 1:
        raise ConfigError(f"prebatch is {prebatch}, expected a positive integer.")
    targets = _targets(files, directory, SUFFIX)
    names = [feature.name for feature in spec.features]
    batch_size = max(1, _BLOCK_ROWS // prebatch) * prebatch
    cardinalities = {feature.name: feature.cardinality for feature in spec.features if feature.cardinality}
    fills = null_fills(spec)
    streams = [
        BatchStream([path], names, batch_size=batch_size, shuffle=False, cardinalities=cardinalities, fill_nulls=fills)
        for path in files
    ]
    before, total = 0, sum(stream.num_rows for stream in streams)
    for path, stream, target in zip(files, streams, targets, strict=True):
        with whole_file(target) as staging, tf.io.TFRecordWriter(str(staging)) as writer:
            for number, batch in enumerate(stream.batches(), start=1):
                for record in serialize(batch, spec.features, prebatch=prebatch, path=path):
                    writer.write(record)
                done = before + min(number * batch_size, stream.num_rows)
                progress.update(done, total, f"{done:,} of {total:,} rows written")
        before += stream.num_rows
    return targets


def serialize(batch: Batch, features: Sequence[Feature], *, prebatch: int, path: Path) -> Iterator[bytes]:
    """Yield the serialized Examples of a batch, in the block layout if `prebatch` is above 1.

    TensorFlow encodes whole columns at once. `tf.train.Example` creates an object per value and is twenty times slower.
    """
    lists: dict[str, Ragged] = {}
    for feature in features:
        lists |= _value_lists(batch[feature.name], feature, prebatch, path)
    num_records = len(next(iter(lists.values())).offsets) - 1
    for start, stop in pairwise([*range(0, num_records, _ENCODED_RECORDS), num_records]):
        entries = [_entries(name, lists[name], start, stop) for name in sorted(lists)]
        sizes = tf.fill((stop - start, 1), len(entries))
        maps = tf.io.encode_proto(sizes, [tf.stack(entries, axis=1)], ["feature"], "tensorflow.Features")
        yield from _messages("Example", features=maps).numpy()


def _value_lists(column: Any, feature: Feature, prebatch: int, path: Path) -> dict[str, Ragged]:
    name, is_list = feature.name, isinstance(column, Ragged) or column.ndim > 1
    if is_list != feature.is_list:
        expected = "lists" if feature.is_list else "single values"
        raise DataError(f"{path}: column {name!r} does not contain {expected}, which the feature spec requires.")
    values = column.values if isinstance(column, Ragged) else column.reshape(-1)
    dtype = tensor_dtype(feature).as_numpy_dtype
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise DataError(f"{path}: column {name!r} is {values.dtype}, but the feature spec says {feature.dtype}.")
    nnzs = column.lengths if isinstance(column, Ragged) else np.full(len(column), column[:1].size)
    records = np.minimum(np.arange(0, len(nnzs) + prebatch, prebatch), len(nnzs))
    lists = {name: Ragged(values=values.astype(dtype, copy=False), offsets=offsets_of(nnzs)[records])}
    if is_list and prebatch > 1:
        lists[name + NNZS] = Ragged(values=nnzs.astype(np.int64), offsets=records)
    return lists


def _entries(name: str, lists: Ragged, start: int, stop: int) -> Any:
    """Serialize one feature of the records from `start` to `stop` as feature map entries."""
    kind, message = _LISTS[tf.as_dtype(lists.values.dtype)]
    bounds = lists.offsets[start : stop + 1]
    values = tf.RaggedTensor.from_row_splits(lists.values[bounds[0] : bounds[-1]], bounds - bounds[0])
    sizes = tf.cast(values.row_lengths()[:, None], tf.int32)
    encoded = tf.io.encode_proto(sizes, [values.to_tensor()], ["value"], f"tensorflow.{message}")
    return _messages(
        "Features.FeatureEntry", key=tf.fill((stop - start,), name), value=_messages("Feature", **{kind: encoded})
    )


def _messages(kind: str, **fields: Any) -> Any:
    """Serialize one protobuf message per record from its encoded fields, as byte strings of shape (R,)."""
    (num_records,) = next(iter(fields.values())).shape
    sizes = tf.ones((num_records, len(fields)), tf.int32)
    return tf.io.encode_proto(sizes, [text[:, None] for text in fields.values()], list(fields), f"tensorflow.{kind}")


def parquet_from_tfrecords(
    files: Sequence[Path], spec: FeatureSpec, directory: Path, *, progress: Progress = SILENT
) -> list[Path]:
    """Write each TFRecord file as a Parquet file with the same rows in the same order.

    The files may come from any writer, in either layout, as long as they have the columns of the spec.
    """
    targets = _targets(files, directory, ".parquet")
    schema = arrow_schema(spec.features)
    done, total, num_rows = 0, sum(path.stat().st_size for path in files), 0
    for path, target in zip(files, targets, strict=True):
        with whole_file(target) as staging, pq.ParquetWriter(staging, schema) as writer:
            tables = tfrecord_tables(path, spec.features, counted=spec.label, block_rows=_BLOCK_ROWS, files=files)
            for num_bytes, table in tables:
                writer.write_table(table, row_group_size=_BLOCK_ROWS)
                done += num_bytes
                num_rows += table.num_rows
                progress.update(done, total, f"{num_rows:,} rows read")
    return targets


def tfrecord_tables(
    path: Path, features: Sequence[Feature], *, counted: Feature, block_rows: int, files: Sequence[Path]
) -> Iterator[tuple[int, pa.Table]]:
    """Yield consecutive parts of a TFRecord file as (size in bytes, table).

    Args:
        path: an uncompressed file, in either layout.
        features: columns to read.
        counted: a single-value column among them, whose values give the number of rows of a record.
        block_rows: approximate number of rows to parse at a time.
        files: all files of the data; each list column must be in one of them.
    """
    schema = arrow_schema(features)
    for num_bytes, parsed in _parsed(path, _layout_of([path], features, counted=counted, beside=files), block_rows):
        yield num_bytes, pa.table([_arrow_column(parsed, feature, path) for feature in features], schema=schema)


def rows_per_record(files: Sequence[Path], label: Feature) -> int:
    return _layout_of(files, [label], counted=label).block_rows


def _arrow_column(parsed: Mapping[str, Any], feature: Feature, path: Path) -> pa.Array:
    values = parsed[feature.name + VALUES if feature.is_list else feature.name].numpy()[:, 0]
    try:
        array = pa.array(values).cast(arrow_type(feature))
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: feature {feature.name!r} cannot be converted to {feature.dtype}: {error}") from None
    if not feature.is_list:
        return array
    return arrow_lists(array, offsets_of(parsed[feature.name + NNZS].numpy()[:, 0]))


def _targets(files: Sequence[Path], directory: Path, suffix: str) -> list[Path]:
    targets = [directory / (path.stem + suffix) for path in files]
    if len(set(targets)) < len(targets):
        raise ConfigError(f"two of the input files would get the same name in {directory}. Rename one of them.")
    return targets


# --- Records to tensors


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of records, which determines how to parse them.

    Attributes:
        counted: a single-value column, whose values give the number of rows of a record.
        block_rows: rows of a full record; above 1 in the block layout.
        has_nnzs: whether list columns have `name__nnzs`, as they do in the block layout.
    """

    features: tuple[Feature, ...]
    counted: Feature
    block_rows: int
    has_nnzs: bool

    def __post_init__(self) -> None:
        for feature in self.features:
            fill = self._fill(feature)
            if fill is not None and tensor_dtype(feature) == tf.int64 and not float(fill).is_integer():
                raise DataError(
                    f"feature {feature.name!r} is {feature.dtype}, but its null_fill is {fill}, expected an integer."
                )

    @property
    def is_block(self) -> bool:
        return self.has_nnzs or self.block_rows > 1

    def num_records(self, num_rows: int) -> int:
        return max(1, num_rows // self.block_rows)

    def parse(self, serialized: Any) -> dict[str, Any]:
        """Parse serialized records, given as byte strings of shape (R,), either in a graph or eagerly.

        Returns:
            `name` of shape (N, 1); for a list column `name__values` (M, 1) and `name__nnzs` (N, 1), int32. Integers are
            int64, numbers float32.
        """
        parsers = {feature.name: self._parser(feature) for feature in self.features}
        if self.has_nnzs:
            parsers |= {f.name + NNZS: tf.io.RaggedFeature(tf.int64) for f in self.features if f.is_list}
        parsed = tf.io.parse_example(serialized, parsers)
        tensors: dict[str, Any] = {}
        for feature in self.features:
            column, name = parsed[feature.name], feature.name
            if not feature.is_list:
                tensors[name] = self._per_row(name, column, parsed, self._fill(feature))
                _assert_ids(tensors[name], feature)
                continue
            _assert_ids(column.values, feature)
            tensors[name + VALUES] = _as_column(column.values)
            nnzs = column.row_lengths()
            if self.has_nnzs:
                of_rows = parsed[name + NNZS]
                _assert(
                    tf.reduce_all(tf.reduce_sum(of_rows, axis=1) == tf.cast(nnzs, tf.int64)),
                    f"feature {name!r} has a different number of values than {name + NNZS!r} says",
                )
                nnzs = self._per_row(name + NNZS, of_rows, parsed)
            elif self.is_block:
                rows = parsed[self.counted.name].row_lengths()
                _assert(
                    tf.reduce_all(nnzs % tf.maximum(rows, 1) == 0),
                    f"feature {name!r} has lists of different lengths in a record, expected their lengths in "
                    f"{name + NNZS!r}",
                )
                nnzs = tf.repeat(nnzs // tf.maximum(rows, 1), rows)
            tensors[name + NNZS] = _as_column(tf.cast(nnzs, tf.int32))
        return tensors

    def _parser(self, feature: Feature) -> Any:
        dtype = tensor_dtype(feature)
        may_lack = feature.is_list or self.is_block or self._fill(feature) is not None
        return tf.io.RaggedFeature(dtype) if may_lack else tf.io.FixedLenFeature((1,), dtype)

    def _fill(self, feature: Feature) -> float | None:
        """Return the value to use if a record lacks the column, or None if the column is required."""
        is_counted = self.is_block and feature.name == self.counted.name
        return None if feature.is_list or is_counted else feature.null_fill

    def _per_row(self, name: str, column: Any, parsed: Mapping[str, Any], fill: float | None = None) -> Any:
        if not isinstance(column, tf.RaggedTensor):
            return column
        counted = parsed[self.counted.name]
        rows = counted.row_lengths() if self.is_block else tf.ones_like(column.row_lengths())
        if fill is not None:
            lacking = tf.where(column.row_lengths() == 0, rows, 0)
            filled = tf.fill((tf.reduce_sum(lacking),), tf.cast(fill, column.dtype))
            column = tf.concat([column, tf.RaggedTensor.from_row_lengths(filled, lacking)], axis=1)
        _assert(
            tf.reduce_all((column.row_lengths() == rows) & (rows > 0)),
            f"feature {name!r} is missing, or does not have one value per row of the record",
        )
        return _as_column(column.values)


def _assert_ids(values: Any, feature: Feature) -> None:
    if feature.cardinality is not None:
        in_range = tf.reduce_all((values >= 0) & (values < feature.cardinality))
        expected = f"the feature spec says 0 to {feature.cardinality - 1}"
        _assert(in_range, f"feature {feature.name!r} contains an id out of range, {expected}")


def _assert(condition: Any, message: str) -> None:
    tf.debugging.assert_equal(condition, True, message=message)


def _as_column(values: Any) -> Any:
    return tf.reshape(values, (-1, 1))


def _layout_of(
    files: Sequence[Path], features: Iterable[Feature], *, counted: Feature, beside: Sequence[Path] = ()
) -> Layout:
    wanted = tuple({feature.name: feature for feature in features}.values())
    lists = [feature.name for feature in wanted if feature.is_list]
    first = {path: record for path in files for record in islice(_decoded(path), 1)}
    with_nnzs = {path: any(name + NNZS in record for name in lists) for path, record in first.items()}
    if len(set(with_nnzs.values())) > 1:
        odd = next(path for path, is_block in with_nnzs.items() if not is_block)
        raise DataError(
            f"{odd} has one row per record, but other files have a block of rows per record. "
            "Convert all files again in one run."
        )
    kind = _LISTS[tensor_dtype(counted)][0]
    layout = Layout(
        features=wanted,
        counted=counted,
        block_rows=max([1, *(len(getattr(record[counted.name], kind).value) for record in first.values())]),
        has_nnzs=any(with_nnzs.values()),
    )
    for path in first:
        _parse(path, next(_records(path, 1)), layout)
    if first:
        _check_lists(lists, [*files, *beside])
    return layout


def _check_lists(lists: Sequence[str], files: Sequence[Path]) -> None:
    """Raise DataError unless each list column occurs in at least one file. Other files may lack it, because records may
    omit empty lists.
    """
    missing, found = set(lists), set[str]()
    for path in files:
        for record in islice(_decoded(path), _MAX_SEARCHED_RECORDS if missing else 0):
            found |= record.keys()
            missing -= record.keys()
            if not missing:
                return
    if missing:
        raise DataError(f"{files[0]} lacks feature {min(missing)!r}. Available: {sorted(found)}.")


def _decoded(path: Path) -> Iterator[Mapping[str, Any]]:
    from google.protobuf.message import DecodeError

    for number, (record,) in enumerate(_records(path, 1), start=1):
        try:
            yield tf.train.Example.FromString(record).features.feature
        except DecodeError:
            raise DataError(
                f"record {number:,} of {path} is not a tf.train.Example. Write each record as an Example."
            ) from None


def _parsed(path: Path, layout: Layout, block_rows: int = _BLOCK_ROWS) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield parsed parts of a file with about `block_rows` rows each, as (size in bytes, tensors)."""
    done = 0
    for records in _records(path, layout.num_records(block_rows)):
        tensors = _parse(path, records, layout, before=done)
        done += len(records)
        yield sum(map(len, records)) + _FRAME_BYTES * len(records), tensors


def _parse(path: Path, records: Sequence[bytes], layout: Layout, before: int = 0) -> dict[str, Any]:
    """Parse records, or raise DataError for the first invalid one. `before` is the number of preceding records in the
    file.
    """
    try:
        return layout.parse(tf.constant(records))
    except tf.errors.InvalidArgumentError as error:
        if len(records) > 1:
            for number, record in enumerate(records):
                _parse(path, [record], layout, before + number)
        raise DataError(
            f"{path}, record {before + 1:,} does not match the feature spec: {_reason(error)}. Fix the record or "
            "the spec."
        ) from None


def _records(path: Path, at_once: int) -> Iterator[list[bytes]]:
    try:
        for records in tf.data.TFRecordDataset(str(path), buffer_size=_READ_BUFFER_BYTES).batch(at_once):
            yield records.numpy().tolist()
    except tf.errors.NotFoundError:
        raise DataError(f"{path} does not exist, expected a TFRecord file.") from None
    except tf.errors.DataLossError as error:
        raise DataError(
            f"{path} is not a complete TFRecord file ({_reason(error)}). Write it again without compression."
        ) from None


def _reason(error: Any) -> str:
    """Return the message of a TensorFlow error, excluding the names of operations."""
    message: str = error.message.rpartition("}} ")[2].partition(" [Op:")[0]
    return message.splitlines()[0].replace("Name: <unknown>, ", "").rstrip(". ")


# --- Records to batches


class TFRecordLoader:
    """Batches from TFRecord files, equivalent to the Parquet batches of
    `rankline.training.data.loader.tensorflow.KerasSequenceLoader`.

    A batch is `(inputs, labels)` with the same names, shapes and types; lists are always `name__values` and
    `name__nnzs`. A column missing from a record has its `null_fill`. `TF_MEMORY_ALLOCATION` applies here too. Each pass
    is an epoch with each row once. With `shuffle`, files are read in a new order, a few at a time in turn, and records
    are shuffled in groups of `shuffle_rows` rows; the order is derived from (seed, epoch). In the block layout whole
    blocks are shuffled, and the rows of a block stay together. Whole batches are parsed in parallel, ahead of the
    consumer.

    Args:
        files: TFRecord files, all in the same layout.
        spec: the columns and their types.
        batch_size: rows per batch; only the last batch of an epoch is smaller.
        num_rows: rows of all files, which TFRecord does not store.
        shuffle: read the rows in a new order in each epoch.
        shuffle_rows: rows to hold in memory and shuffle together.
        seed: seed of the random order.
        drop_last: drop the last rows if they do not fill a batch.
        prefetch: batches to prepare ahead of the consumer; None lets tf.data decide.
        num_threads: threads for reading and parsing; None lets tf.data decide.
    """

    def __init__(
        self,
        files: Sequence[Path],
        spec: FeatureSpec,
        batch_size: int,
        *,
        num_rows: int,
        shuffle: bool = True,
        shuffle_rows: int = 1 << 17,
        seed: int = 0,
        drop_last: bool = False,
        prefetch: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        check_reading(prefetch, num_threads)
        for name, number in (("batch_size", batch_size), ("shuffle_rows", shuffle_rows)):
            if number < 1:
                raise ConfigError(f"{name} is {number}, expected a positive integer.")
        if not files:
            raise DataError("no TFRecord files were passed to the loader. Pass at least one.")
        limit_tensorflow_memory()
        self.num_rows = num_rows // batch_size * batch_size if drop_last else num_rows
        check_any_batch(self.num_rows, batch_size, all_rows=num_rows)
        self._spec_rows, self._drop_last = num_rows, drop_last
        self._prefetch = tf.data.AUTOTUNE if prefetch is None else prefetch
        self._num_threads = tf.data.AUTOTUNE if num_threads is None else num_threads
        self._files, self._batch_size = list(files), batch_size
        self._shuffle_rows, self._seed = shuffle_rows, seed
        self._columns = [(spec[name], tf.as_dtype(dtype)) for name, dtype in spec.model_dtypes.items()]
        self._labels = spec.labels
        self._layout = _layout_of(files, [*(f for f, _ in self._columns), *spec.labels], counted=spec.label)
        with tf.device("CPU:0"):  # tf.data runs on the CPU
            self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        # AutoGraph would rewrite the source of each function, which takes longer than tracing it.
        self._dataset = tf.autograph.experimental.do_not_convert(self._pipeline)(shuffle)

    def __len__(self) -> int:
        return -(-self.num_rows // self._batch_size)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        done = 0
        try:
            for inputs, labels in self._dataset:
                done += int(_num_rows(labels))
                yield inputs, labels
        except tf.errors.OpError as error:
            raise self._explained(error) from None
        if done != self.num_rows:
            counted = "rows in whole batches" if self._drop_last else "rows"
            raise DataError(
                f"{self._files[0].parent}: the files contain {done:,} {counted}, but the feature spec says "
                f"{self._spec_rows:,}. Fix num_rows in the spec, or convert the data again."
            )

    def as_dataset(self) -> Any:
        """Return the batches as a `tf.data.Dataset`. Each pass over it yields the next epoch.

        Errors in the data are TensorFlow's, including a number of batches that differs from `len()`.
        """
        return self._dataset.apply(tf.data.experimental.assert_cardinality(len(self)))

    def _shuffled_epoch(self, epoch: Any) -> Any:
        """Return a dataset of batches of serialized records in random order.

        Dataset.shuffle moves one record at a time; shuffling many at once is several times faster.
        """
        seed = tf.stack([tf.constant(self._seed, tf.int64), epoch])
        shuffle = tf.random.experimental.stateless_shuffle
        return (
            tf.data.Dataset.from_tensor_slices(shuffle(self._paths(), seed))
            .interleave(
                lambda path: tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER_BYTES).batch(_READ_RECORDS),
                cycle_length=_OPEN_FILES,
                num_parallel_calls=self._num_threads,
                deterministic=True,
            )
            .rebatch(self._layout.num_records(self._shuffle_rows))
            .enumerate()
            .map(lambda number, records: shuffle(records, tf.random.experimental.stateless_fold_in(seed, number)))
            .rebatch(self._num_parsed_records())
        )

    def _num_parsed_records(self) -> int:
        """Return the number of records to parse at a time: one batch, or blocks of rows to split into batches."""
        if not self._layout.is_block:
            return self._batch_size
        return self._layout.num_records(max(self._batch_size, _PARSED_ROWS))

    def _pipeline(self, shuffle: bool) -> Any:
        if shuffle:
            epochs = tf.data.Dataset.from_tensors(0).map(lambda _: self._epoch.assign_add(1) - 1)
            serialized = epochs.flat_map(self._shuffled_epoch)
        else:
            records = tf.data.TFRecordDataset(self._paths(), buffer_size=_READ_BUFFER_BYTES)
            serialized = records.batch(self._num_parsed_records())
        parsed = serialized.map(self._layout.parse, num_parallel_calls=self._num_threads, deterministic=True)
        if self._layout.is_block:
            parsed = _rebatched(parsed, self._batch_size, self._layout)
        batches = parsed.map(self._as_batch)
        if self._drop_last:
            batches = batches.filter(lambda _, labels: _num_rows(labels) == self._batch_size)
        return batches.prefetch(self._prefetch) if self._prefetch else batches

    def _as_batch(self, tensors: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        inputs = {}
        for feature, dtype in self._columns:
            if feature.is_list:
                inputs[feature.name + VALUES] = tf.cast(tensors[feature.name + VALUES], dtype)
                inputs[feature.name + NNZS] = tensors[feature.name + NNZS]
            else:
                inputs[feature.name] = tf.cast(tensors[feature.name], dtype)
        labels = tuple(tf.cast(tensors[label.name], tf.float32) for label in self._labels)
        return inputs, labels[0] if len(labels) == 1 else labels

    def _paths(self) -> Any:
        return tf.constant([str(path) for path in self._files])

    def _explained(self, error: Any) -> DataError:
        """Find the file and feature that caused an error, which the pipeline cannot report because it mixes files."""
        try:
            for path in self._files:
                for _ in _parsed(path, self._layout):
                    pass
        except DataError as found:
            return found
        return DataError(f"{self._files[0].parent}: the files cannot be read: {error.message}")


def _num_rows(labels: Any) -> Any:
    return tf.shape(labels[0] if isinstance(labels, tuple) else labels)[0]


def _rebatched(dataset: Any, batch_size: int, layout: Layout) -> Any:
    """Return a dataset of the same rows in batches of `batch_size`, regardless of how many rows each element has."""
    nothing = {name: tf.zeros((0, 1), spec.dtype) for name, spec in dataset.element_spec.items()}
    lists = [feature.name for feature in layout.features if feature.is_list]

    def cut(tensors: Mapping[str, Any], start: Any, stop: Any) -> dict[str, Any]:
        rows = {name: tensor[start:stop] for name, tensor in tensors.items()}
        for name in lists:
            nnzs = tensors[name + NNZS]
            first = tf.reduce_sum(nnzs[:start])
            rows[name + VALUES] = tensors[name + VALUES][first : first + tf.reduce_sum(nnzs[start:stop])]
        return rows

    def step(left_over: Mapping[str, Any], element: tuple[Any, Mapping[str, Any]]) -> tuple[Any, Any]:
        is_end, new = element
        rows = {name: tf.concat([left_over[name], new[name]], axis=0) for name in new}
        num_rows = tf.shape(rows[layout.counted.name])[0]
        whole = tf.where(is_end, num_rows, num_rows // batch_size * batch_size)
        return cut(rows, whole, num_rows), (cut(rows, 0, whole), whole)

    def batches(rows: Mapping[str, Any], num_rows: Any) -> Any:
        starts = tf.data.Dataset.range(0, tf.cast(num_rows, tf.int64), batch_size, output_type=tf.int32)
        return starts.map(lambda start: cut(rows, start, start + batch_size))

    marked = dataset.map(lambda rows: (False, rows))
    end = tf.data.Dataset.from_tensors((True, nothing))
    return marked.concatenate(end).scan(nothing, step).flat_map(batches)
