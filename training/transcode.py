"""transcode: the files of a `feature_spec.yaml` in another format, each mapping as one chunk.

NVIDIA's DeepLearningExamples list this for SIM as not supported.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from training.data_set import DataSet, Reading
from training.loader.columns import arrow_schema, from_arrow
from workflows.artifacts import publish, refuse_foreign
from workflows.datasets.raw import fingerprint_of
from workflows.errors import DataError
from workflows.extras import require
from workflows.lists import arrow_lists, offsets_of
from workflows.progress import SILENT, Progress
from workflows.spec_file import CSV, FILE_NAME, FILE_TYPES, PARQUET, TFRECORD, Chunk, Feature, SpecFile, check_target

KIND = "data-set"

_Write = Callable[[pa.Table], object]


def transcode(
    path: Path,
    output: Path,
    to: str,
    *,
    prebatch: int = 1,
    block_rows: int = 1 << 14,
    file_rows: int = 1 << 22,
    progress: Progress = SILENT,
) -> SpecFile:
    """Write the rows of every mapping in another format, beside a `feature_spec.yaml` of their own.

    Features, channels and metadata stay. Missing values become their `null_fill`. Formats are said in
    `training.data_set`; TFRecord stores float64 as float32.

    Args:
        path: a feature spec, or the directory that holds `feature_spec.yaml`.
        output: directory of the new data, replaced when it is whole.
        to: one of `workflows.spec_file.FILE_TYPES`; what has this format already is written again.
        prebatch: rows per TFRecord; the last record has what is left over.
        block_rows: rows that are in memory at a time.
        file_rows: rows of a file; a little more or less, so that it has whole blocks.
        progress: told bytes read; the note has rows.

    Returns:
        The new spec.

    Raises:
        ConfigError: no such format, or `prebatch` does not go with it.
        SpecError: the spec contradicts itself or the files; the message has the place.
        DataError: a file is damaged, a value does not fit, or a mapping has no rows.
        ArtifactError: `output` holds something else.
        MissingExtraError: a format is TFRecord, and there is no TensorFlow.
    """
    check_target(to, FILE_TYPES, prebatch)
    if to == TFRECORD:
        require("tensorflow", feature="transcoding to TFRecord", extra="cpu")
    refuse_foreign(output, KIND)
    data = DataSet.read(path)
    if not data.spec.mappings:
        raise DataError(f"{data.path}: source_spec is empty, so there is nothing to transcode.")
    names = tuple(feature.name for feature in data.spec.features)
    made_from, details = {"files": fingerprint_of([data.path, *data.files])}, {"to": to, "prebatch": prebatch}
    with publish(output, KIND, made_from=made_from, details=details) as staging:
        mappings, reading = {}, Reading(data, list(data.spec.mappings), progress)
        for mapping in data.spec.mappings:
            tables = (rows.table for rows in reading.rows(mapping))
            blocks = _blocks(tables, max(1, block_rows // prebatch) * prebatch)
            files: list[str] = []
            (staging / mapping).mkdir()
            for first in blocks:
                files.append(f"{mapping}/part-{len(files):03d}.{to}")
                with _WRITERS[to](staging / files[-1], data.spec.features, prebatch) as write:
                    for block in chain([first], islice(blocks, -(-file_rows // len(first)) - 1)):
                        write(block)
            if not files:
                raise DataError(f"{data.path}: the files of source_spec.{mapping} have no rows.")
            num_rows = reading.num_rows[mapping]
            mappings[mapping] = (Chunk(type=to, features=names, files=tuple(files), num_rows=num_rows),)
        spec = replace(data.spec, mappings=mappings)
        (staging / FILE_NAME).write_text(spec.to_yaml(), encoding="utf-8")
    return spec


def _blocks(tables: Iterable[pa.Table], num_rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of `num_rows`, fewer in the last one."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        while sum(map(len, held)) >= num_rows:
            rows = pa.concat_tables(held)
            yield rows.slice(0, num_rows)
            held = [rows.slice(num_rows)]
    if any(map(len, held)):
        yield pa.concat_tables(held)


@contextmanager
def _parquet(path: Path, features: Sequence[Feature], _prebatch: int) -> Iterator[_Write]:
    with pq.ParquetWriter(path, arrow_schema(features)) as writer:
        yield writer.write_table


@contextmanager
def _csv(path: Path, features: Sequence[Feature], _prebatch: int) -> Iterator[_Write]:
    schema = pa.schema([_csv_field(field) for field in arrow_schema(features)])
    with csv.CSVWriter(path, schema, write_options=csv.WriteOptions(include_header=False)) as writer:
        yield lambda table: writer.write_table(
            pa.table([_csv_column(table[field.name], field) for field in schema], schema=schema)
        )


def _csv_field(field: pa.Field) -> pa.Field:
    if pa.types.is_list(field.type):
        return field.with_type(pa.string())
    return field.with_type(pa.float32()) if pa.types.is_float16(field.type) else field


def _csv_column(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """A list as its numbers with spaces between them."""
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if not pa.types.is_list(array.type):
        return array.cast(field.type)
    values = array.flatten()
    if pa.types.is_float16(values.type):  # which Arrow does not write as text
        values = pa.array(values.to_numpy(zero_copy_only=False).astype(np.float32))
    offsets = offsets_of(pc.list_value_length(array).to_numpy())
    return pc.binary_join(arrow_lists(values.cast(pa.string()), offsets), " ")


@contextmanager
def _tfrecord(path: Path, features: Sequence[Feature], prebatch: int) -> Iterator[_Write]:
    import tensorflow as tf  # takes seconds to import

    from training.loader.examples import serialize

    with tf.io.TFRecordWriter(str(path)) as writer:

        def write(table: pa.Table) -> None:
            batch = {name: from_arrow(table[name]) for name in table.column_names}
            for record in serialize(batch, features, prebatch=prebatch, path=path):
                writer.write(record)

        yield write


_WRITERS: dict[str, Callable[[Path, Sequence[Feature], int], AbstractContextManager[_Write]]] = {
    PARQUET: _parquet,
    CSV: _csv,
    TFRECORD: _tfrecord,
}
