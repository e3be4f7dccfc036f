"""Readers and writers for row files: raw partitions for fitting NVTabular workflows, and encoded files for loaders.

Partitions are read once or twice and then deleted, so they are in Arrow's IPC format, which is nearly free to read.
Encoded files are Parquet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq

from rankline.workflows.nvt.compat import from_map, nvt
from rankline.workflows.nvt.operators.arrow_input import frame_of
from rankline.workflows.schema.feature_spec import Feature

from merlin.dtypes.shape import DefaultShapes  # isort: skip
from merlin.schema import ColumnSchema, Schema  # isort: skip

NUM_FILES = {"train": 4, "valid": 2}
"""Split → minimum number of files."""

_MIN_GROUP_ROWS = 1 << 10
_EXAMPLE_ROWS = 100


@dataclass(frozen=True, kw_only=True)
class FileRows:
    path: Path
    start: int
    num_rows: int

    def read(self) -> pa.Table:
        return read_partition(self.path).slice(self.start, self.num_rows)


@dataclass(frozen=True, kw_only=True)
class RawSplit:
    """Raw rows of a split, in the partitions that NVTabular processes."""

    name: str  # "train" or "valid"
    partitions: tuple[Path, ...]  # files for `read_partition`; strings that become numbers are dictionaries
    num_rows: int  # total number of rows
    schema: pa.Schema  # schema of the raw rows

    def cut(self, rows_per_file: int) -> list[tuple[FileRows, ...]]:
        """Divide the rows of all partitions into files of `rows_per_file` rows; the last file may have fewer."""
        files: list[list[FileRows]] = []
        done = 0
        for path in self.partitions:
            start, num_rows = 0, pa_dataset.dataset(path, format="ipc").count_rows()
            while start < num_rows:
                if done % rows_per_file == 0:
                    files.append([])
                size = min(num_rows - start, rows_per_file - done % rows_per_file)
                files[-1].append(FileRows(path=path, start=start, num_rows=size))
                start, done = start + size, done + size
        return [tuple(rows) for rows in files]

    def open(self, columns: Sequence[str]) -> nvt.Dataset:
        meta = frame_of_partition(_schema_of(self.partitions[0]).empty_table().select(columns))
        rows = from_map(_read_partition, self.partitions, columns=list(columns), meta=meta)  # type: ignore[no-untyped-call]
        return nvt.Dataset(rows, schema=_nvtabular_schema(self.schema, columns))

    def example(self) -> nvt.Dataset:
        """Return example rows without empty lists, because NVTabular infers list types from the first row."""
        rows = read_partition(self.partitions[0]).slice(0, _EXAMPLE_ROWS).cast(self.schema)
        for number, field in enumerate(rows.schema):
            if pa.types.is_list(field.type):
                lists = rows[field.name]
                rows = rows.set_column(number, field, pc.if_else(_has_values(lists), lists, self._list_of(field)))
        return nvtabular_dataset(rows)

    def _list_of(self, field: pa.Field) -> pa.Scalar:
        """Return the first non-empty list in a column, or a placeholder list if every list is empty."""
        for path in self.partitions:
            lists = read_partition(path, [field.name])[field.name]
            if len(filled := lists.filter(_has_values(lists))):
                return filled[0]
        return pa.ListArray.from_arrays([0, 1], pa.array([0]).cast(field.type.value_type))[0]


def _has_values(lists: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.greater(pc.list_value_length(lists), 0), False)


def read_partition(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        if columns is None:
            return pa.ipc.open_file(file).read_all()
        schema = pa.ipc.open_file(file).schema
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in columns])
        return pa.ipc.open_file(file, options=options).read_all().select(columns)


def _schema_of(path: Path) -> pa.Schema:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).schema


def nvtabular_dataset(rows: pa.Table) -> nvt.Dataset:
    return nvt.Dataset(rows.to_pandas(), schema=_nvtabular_schema(rows.schema, rows.column_names))


def frame_of_partition(rows: pa.Table) -> pd.DataFrame:
    """Convert rows of a partition to NVTabular's layout; see `rankline.workflows.nvt.operators.frame_of`."""
    return frame_of(rows, [field.name for field in rows.schema if pa.types.is_dictionary(field.type)])


def _read_partition(path: Path, columns: list[str]) -> pd.DataFrame:
    return frame_of_partition(read_partition(path, columns))


def _nvtabular_schema(schema: pa.Schema, columns: Sequence[str]) -> Schema:
    """Build an explicit NVTabular schema for the columns, because NVTabular would infer float for integer columns that
    start with null.
    """
    return Schema([_column_schema(schema.field(name)) for name in columns])


def _column_schema(field: pa.Field) -> ColumnSchema:
    is_list = pa.types.is_list(field.type)
    dtype = np.dtype((field.type.value_type if is_list else field.type).to_pandas_dtype())
    return ColumnSchema(field.name, dtype=dtype, dims=DefaultShapes.LIST if is_list else DefaultShapes.SCALAR)


def dtype_of(column: ColumnSchema) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(column.dtype.to_numpy)
    return dtype


def feature_of(column: ColumnSchema, max_length: int | None = None) -> Feature:
    sizes = column.properties.get("embedding_sizes", {})
    return Feature(
        name=column.name,
        dtype=dtype_of(column).name,
        cardinality=int(sizes["cardinality"]) if sizes else None,
        embedding_dim=int(sizes["dimension"]) if sizes else None,
        is_list=bool(column.is_list),
        max_length=max_length,
    )


def layout_of_split(name: str, num_rows: int, max_file_rows: int, max_group_rows: int) -> tuple[int, int]:
    """Return the number of rows per file and per row group of an encoded split, for loaders to read in parallel."""
    rows_per_file = -(-num_rows // max(NUM_FILES[name], -(-num_rows // max_file_rows)))
    return rows_per_file, min(max(rows_per_file // 4, _MIN_GROUP_ROWS), max_group_rows)


def file_name(number: int, kind: str = "parquet") -> str:
    return f"part-{number:03d}.{kind}"


class FilesWriter:
    """A writer that divides tables into numbered files `part-000.parquet` or `part-000.arrow`.

    The last file, and the last row group of a file, may have fewer rows. Partitions (`.arrow`) have columns to write
    dictionary-encoded, `dictionaries`; without these, the files are Parquet.
    """

    def __init__(
        self,
        directory: Path,
        *,
        rows_per_file: int,
        rows_per_group: int | None = None,
        dictionaries: Sequence[str] | None = None,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self._directory, self._paths = directory, list[Path]()
        self._rows_per_file, self._rows_per_group = rows_per_file, rows_per_group or rows_per_file
        self._dictionaries = dictionaries
        self._held: list[pa.Table] = []
        self._num_held, self._num_in_file = 0, 0
        self._file: pq.ParquetWriter | pa.ipc.RecordBatchFileWriter | None = None

    def write(self, table: pa.Table) -> None:
        self._held.append(table)
        self._num_held += len(table)
        while self._num_held >= (num_rows := min(self._rows_per_file - self._num_in_file, self._rows_per_group)):
            self._write_group(num_rows)

    def close(self) -> list[Path]:
        if self._num_held:
            self._write_group(self._num_held)
        self._close_file()
        return self._paths

    def _write_group(self, num_rows: int) -> None:
        rows = pa.concat_tables(self._held)
        self._held, self._num_held = [rows.slice(num_rows)], len(rows) - num_rows
        group = rows.slice(0, num_rows)
        for name in self._dictionaries or ():
            group = group.set_column(group.schema.get_field_index(name), name, group[name].dictionary_encode())
        if self._dictionaries is not None:  # Arrow's file format allows one dictionary per column
            group = group.combine_chunks()
        if self._file is None:
            self._file = self._opened(group.schema)
        self._file.write_table(group, num_rows)
        self._num_in_file += num_rows
        if self._num_in_file == self._rows_per_file:
            self._close_file()

    def _opened(self, schema: pa.Schema) -> "pq.ParquetWriter | pa.ipc.RecordBatchFileWriter":
        kind = "parquet" if self._dictionaries is None else "arrow"
        self._paths.append(self._directory / file_name(len(self._paths), kind))
        if self._dictionaries is None:
            return pq.ParquetWriter(self._paths[-1], schema)
        return pa.ipc.new_file(str(self._paths[-1]), schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._num_in_file = None, 0
