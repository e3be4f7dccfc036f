"""Readers for data sets described by a `feature_spec.yaml`. Rows are read in blocks and checked against the spec.

    csv       no header; columns in the order of `features`; a list is one field of numbers separated by spaces; an
              empty field is a missing value, or an empty list
    parquet   columns by name
    tfrecord  features by name, one row or a block of rows per record; see `rankline.training.data.loader.tfrecord`

The chunks of a mapping are joined side by side, row by row.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from rankline.training.data.loader import columns as arrays
from rankline.training.data.loader.columns import arrow_schema, arrow_type
from rankline.training.data.loader.files import check_fixed_lists
from rankline.workflows.core.errors import DataError, SpecError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.ragged import Ragged, arrow_lists, offsets_of
from rankline.workflows.schema.spec_file import CSV, FILE_NAME, PARQUET, TFRECORD, Chunk, Feature, SpecFile

_BLOCK_ROWS = 1 << 14
_CSV_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Consecutive rows of a mapping.

    Attributes:
        table: columns in the order of the spec, with its dtypes and without nulls.
        origins: column → its file, and the number of rows of that file that precede these.
        num_bytes: bytes read from all files for these rows.
    """

    table: pa.Table
    origins: Mapping[str, tuple[Path, int]]
    num_bytes: float


@dataclass(frozen=True, kw_only=True)
class DataSet:
    spec: SpecFile
    path: Path

    def __post_init__(self) -> None:
        for mapping, chunks in self.spec.mappings.items():
            if Path(mapping).name != mapping or mapping.startswith("."):
                raise SpecError(
                    f"{self.path}: source_spec has the mapping {mapping!r}, expected a name without path separators "
                    "or a leading dot."
                )
            for number, chunk in enumerate(chunks):
                for position, path in enumerate(self._paths(chunk)):
                    if not path.is_file():
                        place = f"source_spec.{mapping}[{number}].files[{position}]"
                        raise SpecError(f"{self.path}: {place}: file {path} does not exist.")

    @classmethod
    def read(cls, path: Path) -> "DataSet":
        path = path / FILE_NAME if path.is_dir() else path
        return cls(spec=SpecFile.read(path), path=path)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for chunks in self.spec.mappings.values() for chunk in chunks for path in self._paths(chunk))

    def num_bytes(self, mappings: Sequence[str]) -> int:
        chunks = (chunk for mapping in mappings for chunk in self.spec.mappings[mapping])
        return sum(path.stat().st_size for chunk in chunks for path in self._paths(chunk))

    def rows(self, mapping: str, labels: Collection[str] = ()) -> Iterator[Rows]:
        """Yield all rows of a mapping, block by block.

        An id may equal its cardinality: if 0 is padding, as in NVIDIA's SIM, ids start at 1. With several labels, a row
        may lack some, which become NaN.
        """
        place, chunks = f"{self.path}: source_spec.{mapping}", self.spec.mappings[mapping]
        streams = [self._blocks(chunk, f"{place}[{number}]", labels) for number, chunk in enumerate(chunks)]
        held: list[_Block | None] = [None] * len(chunks)
        done = 0
        while True:
            held = [block or next(stream, None) for block, stream in zip(held, streams, strict=True)]
            ready = [block for block in held if block is not None]
            if len(ready) < len(chunks):
                break
            num_rows = min(len(block.table) for block in ready)
            yield self._joined([block.first(num_rows) for block in ready])
            held = [block.after(num_rows) for block in ready]
            done += num_rows
        if ready:
            left = [len(block.table) if block else 0 for block in held]
            counts = [
                done + rows + sum(len(block.table) for block in stream)
                for rows, stream in zip(left, streams, strict=True)
            ]
            raise SpecError(f"{place}: its chunks contain {counts} rows, expected the same number in each.")
        for number, chunk in enumerate(chunks):
            if chunk.num_rows not in (None, done):
                raise SpecError(f"{place}[{number}].num_rows is {chunk.num_rows}, but the files contain {done} rows.")

    def _paths(self, chunk: Chunk) -> list[Path]:
        return [self.path.parent / name for name in chunk.files]

    def _joined(self, blocks: Sequence["_Block"]) -> Rows:
        owners = {name: block for block in blocks for name in block.table.column_names}
        names = [feature.name for feature in self.spec.features]
        return Rows(
            table=pa.table({name: owners[name].table[name] for name in names}),
            origins={name: (owners[name].path, owners[name].start) for name in names},
            num_bytes=sum(block.num_bytes for block in blocks),
        )

    def _blocks(self, chunk: Chunk, place: str, labels: Collection[str]) -> Iterator["_Block"]:
        features = [self.spec[name] for name in chunk.features]
        masked = labels if len(labels) > 1 else ()
        wanted = [_with_nan(feature) if feature.name in masked else feature for feature in features]
        read = partial(_tfrecord, files=self._paths(chunk)) if chunk.type == TFRECORD else _READERS[chunk.type]
        for path in self._paths(chunk):
            start = 0
            for num_bytes, table in read(path, features, f"{place}.features"):
                columns = [
                    _fitted(table[feature.name], feature, path, start, is_label=feature.name in labels)
                    for feature in wanted
                ]
                if len(table):
                    fitted = pa.table(columns, schema=arrow_schema(wanted))
                    yield _Block(table=fitted, path=path, start=start, num_bytes=num_bytes)
                start += len(table)


@dataclass(frozen=True, kw_only=True)
class _Block:
    """One or more consecutive rows of a chunk, all from the same file."""

    table: pa.Table
    path: Path
    start: int
    num_bytes: float

    def first(self, num_rows: int) -> "_Block":
        return replace(self, table=self.table.slice(0, num_rows))

    def after(self, num_rows: int) -> "_Block | None":
        left = self.table.slice(num_rows)
        return replace(self, table=left, start=self.start + num_rows, num_bytes=0) if len(left) else None


# --- Readers: path, features, entry of the features in the spec → bytes read, and rows that are not checked yet

_Reader = Callable[[Path, Sequence[Feature], str], Iterator[tuple[float, pa.Table]]]


def _parquet(path: Path, features: Sequence[Feature], place: str) -> Iterator[tuple[float, pa.Table]]:
    schema = pa.schema([])
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            names = schema.names
            if missing := [feature.name for feature in features if feature.name not in names]:
                raise SpecError(f"{place}: {path} lacks the columns {missing}. Available: {names}.")
            row_bytes = path.stat().st_size / max(1, file.metadata.num_rows)
            for batch in file.iter_batches(_BLOCK_ROWS, columns=[feature.name for feature in features]):
                yield row_bytes * len(batch), pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException) as error:
        check_fixed_lists(str(path), schema, error)
        raise DataError(f"{path} is not a complete Parquet file ({error}). Write it again.") from None


def _tfrecord(
    path: Path, features: Sequence[Feature], place: str, *, files: Sequence[Path]
) -> Iterator[tuple[float, pa.Table]]:
    if (counting := counting_feature(features)) is None:
        raise SpecError(
            f"{place} contains only lists, so the number of rows in a TFRecord cannot be determined. Add a column of "
            "single values, such as the label."
        )
    require("tensorflow", feature=f"reading {path}", extra="cpu")
    from rankline.training.data.loader.tfrecord import tfrecord_tables  # it takes seconds to import

    stored = {feature.name: _as_stored(feature) for feature in features}
    counted = stored[counting.name]
    yield from tfrecord_tables(path, list(stored.values()), counted=counted, block_rows=_BLOCK_ROWS, files=files)


def counting_feature(features: Iterable[Feature]) -> Feature | None:
    """Return the single-value feature used to count the rows of a TFRecord, preferably a required one."""
    single = (feature for feature in features if not feature.is_list)
    return min(single, key=lambda feature: feature.null_fill is not None, default=None)


def _as_stored(feature: Feature) -> Feature:
    """Return the feature as TFRecords store it, with dtype int64 or float32. Limits on ids are removed, because they
    are checked later.
    """
    dtype = "float32" if np.dtype(feature.dtype).kind == "f" else "int64"
    return replace(feature, dtype=dtype, cardinality=None, embedding_dim=None)


def _csv(path: Path, features: Sequence[Feature], place: str) -> Iterator[tuple[float, pa.Table]]:
    if not path.stat().st_size:
        return
    names = [feature.name for feature in features]
    try:
        with pa.OSFile(str(path)) as file:
            reader = csv.open_csv(
                file,
                read_options=csv.ReadOptions(column_names=names, block_size=_CSV_BLOCK_BYTES, use_threads=False),
                parse_options=csv.ParseOptions(ignore_empty_lines=len(names) > 1),  # of one column: a missing value
                convert_options=csv.ConvertOptions(
                    column_types={feature.name: _csv_type(feature) for feature in features},
                    null_values=[""],
                    strings_can_be_null=False,
                ),
            )
            position = 0
            for batch in reader:
                table = pa.Table.from_batches([batch])
                for feature in (feature for feature in features if feature.is_list):
                    lists = _lists_of_text(table[feature.name], feature)
                    table = table.set_column(table.schema.get_field_index(feature.name), feature.name, lists)
                yield file.tell() - position, table
                position = file.tell()
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        hint = "Remove its first line, which is a header. " if _first_fields(path) == names else ""
        raise DataError(
            f"{path} cannot be read as the columns {names} of {place} ({reason}). {hint}Expected these columns in "
            "this order, without a header, with lists as space-separated numbers."
        ) from None


def _csv_type(feature: Feature) -> pa.DataType:
    if feature.is_list:
        return pa.string()
    return pa.float32() if feature.dtype == "float16" else arrow_type(feature)  # Arrow cannot read float16


def _lists_of_text(column: pa.ChunkedArray, feature: Feature) -> pa.ListArray:
    """Parse fields such as "3 17 4" as lists."""
    trimmed = pc.utf8_trim_whitespace(column.combine_chunks())
    words = pc.utf8_split_whitespace(trimmed)
    lengths = np.where(pc.equal(trimmed, "").to_numpy(zero_copy_only=False), 0, pc.list_value_length(words).to_numpy())
    values = words.flatten()
    numbers = values.filter(pc.not_equal(values, "")).cast(_csv_type(replace(feature, is_list=False, max_length=None)))
    return arrow_lists(numbers, offsets_of(lengths))


def _first_fields(path: Path) -> list[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return [field.strip().strip('"') for field in file.readline().split(",")]


_READERS: dict[str, _Reader] = {PARQUET: _parquet, CSV: _csv}


# --- Conversion of values to the spec


def _with_nan(label: Feature) -> Feature:
    is_float = np.dtype(label.dtype).kind == "f"
    return replace(label, dtype=label.dtype if is_float else "float64", null_fill=math.nan)


def _fitted(column: pa.ChunkedArray, feature: Feature, path: Path, start: int, *, is_label: bool) -> pa.Array:
    """Validate a column and convert it to the feature's dtype. `start` is its row offset in the file."""
    where, entry = f"{path}: column {feature.name!r}", f"feature_spec.{feature.name}"
    if not arrays.is_numeric(column.type):
        raise SpecError(f"{where} is {column.type}, but {entry}.dtype is {feature.dtype}.")
    if missing := arrays.num_nulls(column):
        if feature.null_fill is None:
            remedy = "Remove these rows" if is_label else f"Fill them, or set {entry}.null_fill"
            raise DataError(f"{where} contains {missing:,} nulls. {remedy}.")
        try:
            if is_label:
                column = column.cast(pa.float64())  # integers cannot hold NaN
            column = arrays.fill_nulls(column, feature.null_fill)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(f"{where} cannot be filled with {feature.null_fill!r}: {error}.") from None
    numbers = arrays.from_arrow(column)
    is_list = isinstance(numbers, Ragged) or numbers.ndim > 1
    if is_list != feature.is_list:
        kinds = ("lists", "without") if is_list else ("single values", "with")
        raise SpecError(f"{where} contains {kinds[0]}, but {entry} is declared {kinds[1]} 'dimensions'.")
    rows = _ListRows(numbers, where, start)
    values = _cast(rows, feature)
    if feature.cardinality is not None:
        rows.check((values < 0) | (values > feature.cardinality), f"{entry}.cardinality is {feature.cardinality}")
    if feature.max_length is None:
        return pa.array(values)
    rows.check_lengths(feature.max_length, f"{entry}.dimensions")
    return arrow_lists(values, rows.offsets)


class _ListRows:
    def __init__(self, column: arrays.Column, where: str, start: int) -> None:
        self.values = column.values if isinstance(column, Ragged) else column.reshape(-1)
        num_rows = arrays.num_rows(column)
        width = len(self.values) // num_rows if num_rows else 0
        self.offsets = column.offsets if isinstance(column, Ragged) else np.arange(num_rows + 1) * width
        self._where, self._start = where, start

    def check(self, wrong: npt.NDArray[np.bool_], expected: str) -> None:
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            row = int(np.searchsorted(self.offsets, first, side="right"))
            raise SpecError(f"{self._where} contains {self.values[first]} in row {self._start + row}, but {expected}.")

    def check_lengths(self, longest: int, name: str) -> None:
        lengths = np.diff(self.offsets)
        if lengths.max(initial=0) > longest:
            row = int(lengths.argmax())
            raise SpecError(
                f"{self._where} has {lengths[row]} values in row {self._start + row + 1}, expected at most "
                f"{longest} ({name})."
            )


def _cast(rows: _ListRows, feature: Feature) -> npt.NDArray[Any]:
    """Convert the values to the feature's dtype. Floats may be rounded, but integers must convert exactly."""
    values, dtype = rows.values, np.dtype(feature.dtype)
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        made: npt.NDArray[Any] = values.astype(dtype)
        if dtype.kind != "f":
            changed = (made.astype(values.dtype) != values) | ((made < 0) != (values < 0))
            rows.check(changed, f"feature_spec.{feature.name}.dtype is {feature.dtype}")
    return made
