"""Reading of table rows for training and requests, with casts and checks applied batch by batch."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, count
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from rankline.workflows.core.errors import DataError
from rankline.workflows.core.formatting import did_you_mean, listed
from rankline.workflows.data.tabular.cast import (
    LABEL_TYPE,
    TYPES,
    ValueFaultError,
    time_text,
    type_of,
    typed_column,
    typed_label,
)
from rankline.workflows.data.tabular.config import EPOCHS, ColumnConfig, FilesConfig, Format, LabelConfig, TableConfig
from rankline.workflows.data.tabular.csv_text import read_header
from rankline.workflows.data.tabular.files import (
    NUMBERS,
    Extent,
    Types,
    find_files,
    format_of,
    names_in,
    read,
    scan,
    with_format,
)
from rankline.workflows.preprocess.raw import RawData, Shard, StreamedRows
from rankline.workflows.schema.arrow_types import is_text, numbers_as_written

_THE_ROW = Path("the row")  # in messages, in place of a file
_SHOWN = 40
_READING = ("type", "format", "separator", "role")
_READING_FILES = ("data.delimiter", "data.quote", "data.encoding", "data.missing")


def safe_names(names: Sequence[str]) -> dict[str, str]:
    """Map each column to a unique name of letters, digits and underscores, which every framework accepts."""
    taken: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"_{2,}", "_", re.sub(r"[^0-9A-Za-z]", "_", name)).strip("_") or "column"
        stem = stem if stem[0].isalpha() else f"c_{stem}"
        unique = next(s for s in (stem, *(f"{stem}_{n}" for n in range(2, len(names) + 2))) if s not in taken.values())
        taken[name] = unique
    return taken


def names_of(config: TableConfig) -> dict[str, str]:
    """Return `safe_names` of the columns and labels of a table.

    Timestamps and vectors become several features, called `NAME_PART`. NAME is chosen so that these are unique, too.
    """
    names = safe_names([*config.columns, *(name for name in config.labels if name not in config.columns)])
    taken = set(names.values())
    for name, column in config.features.items():
        own, parts = names[name], column.parts or range(column.length)
        taken.remove(own)
        for stem in chain([own], (f"{own}_{number}" for number in count(2))):
            made = {stem, *(f"{stem}_{part}" for part in parts)}
            if taken.isdisjoint(made):
                break
        names[name] = stem
        taken |= made
    return names


@dataclass(frozen=True, kw_only=True)
class _Reading:
    files: FilesConfig
    columns: Mapping[str, ColumnConfig]
    labels: Mapping[str, LabelConfig]
    names: Mapping[str, str]

    @property
    def schema(self) -> pa.Schema:
        columns = [(name, type_of(column)) for name, column in self.columns.items()]
        return pa.schema(columns + [(self.names[name], LABEL_TYPE) for name in self.labels])

    @property
    def types(self) -> Types:
        labels = dict.fromkeys(self.labels, pa.string() if self.files.format == "csv" else None)
        return {name: _text_type(column, self.files) for name, column in self.columns.items()} | labels

    def typed(self, batch: pa.RecordBatch, path: Path, done: int) -> pa.RecordBatch:
        made = [
            self.column(name, batch.column(name), path, done).cast(field.type)
            for field, name in zip(self.schema, (*self.columns, *self.labels), strict=True)
        ]
        rows = pa.RecordBatch.from_arrays(made, schema=self.schema)
        return _labelled(rows, [self.names[name] for name in self.labels])

    def column(self, name: str, values: pa.Array, path: Path, done: int) -> pa.Array:
        try:
            if name in self.labels:
                label = self.labels[name]
                return typed_label(self._present(values, label.classes), label)
            column = self.columns[name]
            return typed_column(values if column.type == "string" else self._present(values), column)
        except ValueFaultError as fault:
            raise self._refusal(name, fault, path, done) from None

    def as_found(self, batch: pa.RecordBatch, sent: pa.RecordBatch) -> pa.Table:
        table = pa.Table.from_batches([batch])
        for number, field in enumerate(batch.schema):
            wanted = self.types.get(field.name)
            if self.files.format == "csv" and is_text(field.type) and wanted in NUMBERS:
                table = table.set_column(number, field.name, sent[field.name])
        return table

    def _present(self, values: pa.Array, classes: Sequence[str] = ()) -> pa.Array:
        """Replace missing-value markers with null, ignoring surrounding whitespace."""
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if not is_text(values.type):
            return values
        words = {word.strip() for word in ("", *(self.files.missing if self.files.format == "csv" else ()))}
        missing = pa.array(sorted(words.difference(classes)), values.type)
        return pc.if_else(pc.is_in(pc.utf8_trim_whitespace(values), value_set=missing), None, values)

    def _refusal(self, name: str, fault: ValueFaultError, path: Path, done: int) -> DataError:
        got = repr(fault.got)
        shown = got if len(got) <= _SHOWN else f"{got[:_SHOWN]}…"
        is_label = name in self.labels
        what = f"the label {name!r}" if is_label else f"column {name!r}"
        missing = ", or list it under data.missing" if self.files.format == "csv" else ""
        part = f"labels.{name}" if is_label else f"columns.{name}"
        where = path if path == _THE_ROW else f"{path}, row {done + fault.row + 1}"
        return DataError(
            f"{where}: {what} is {shown}, expected {fault.expected}. Fix the value, or "
            f"{part} in the recipe file{missing}."
        )


def _labelled(rows: pa.RecordBatch, labels: Sequence[str]) -> pa.RecordBatch:
    columns = [rows.column(name) for name in labels]
    if not columns or not all(column.null_count for column in columns):
        return rows
    return rows.filter(reduce(pc.or_, (column.is_valid() for column in columns)))


def read_table(config: TableConfig, base: Path, path: Path | None = None) -> RawData:
    """Find and scan the files of a table, and check their columns. Rows are read on demand.

    Raises:
        DataError: files or columns are missing.
        ConfigError: the format is unknown.
    """
    files, directory = config.data, base
    if path is not None and path != base:
        files, directory = (replace(files, files=(path.name,)), path.parent) if path.is_file() else (files, path)
    paths = find_files(files, directory)
    reading = _Reading(
        files=with_format(files, paths), columns=config.read, labels=config.labels, names=names_of(config)
    )
    noticed = _check_columns(paths, reading)
    scanned = scan(paths, reading.files)
    rows = StreamedRows(
        schema=reading.schema,
        periods=(sum(extent.num_rows for extent in scanned.extents),),
        batches=partial(_typed_batches, reading, scanned.extents),
        shards=tuple(
            Shard(num_rows=extent.num_rows, batches=partial(_typed_batches, reading, [extent]))
            for extent in scanned.extents
        ),
    )
    rows_of = Counter[Path]()
    for extent in scanned.extents:
        rows_of[extent.path] += extent.num_rows
    return RawData(
        rows=rows,
        fingerprint=scanned.fingerprint,
        noticed={remark: sum(rows_of[path.absolute()] for path in of) for remark, of in noticed.items()},
    )


@dataclass(frozen=True)
class TableRequests:
    """Reader for rows to score; see `rankline.workflows.preprocess.dataset.Requests`."""

    config: TableConfig

    def of_file(
        self, path: Path, optional: Collection[str] = (), format_name: str | None = None
    ) -> Iterator[tuple[pa.Table, pa.Table, float]]:
        """Yield batches of rows to score, read like training files. The file may lack labels and have extra columns."""
        files = replace(self.config.data, format=cast("Format | None", format_name) or self.format_of(path))
        reading = self._reading(files, set(optional).difference(names_in(path, files)))
        _check_columns([path], reading)
        known = reading.types
        names = read_header(path, reading.files).names if reading.files.format == "csv" else ()
        others = [name for name in names if name not in known]
        unread = dict.fromkeys(others, pa.string())
        types: Types = {name: known.get(name, unread.get(name)) for name in names_in(path, reading.files)}
        extents = scan([path], reading.files).extents
        total, done = sum(extent.num_rows for extent in extents), 0
        for extent in extents:
            for batch in read(extent, reading.files, types):
                sent = reading.typed(batch, path, done)
                done += batch.num_rows
                rows = numbers_as_written(reading.as_found(batch, sent), others)
                yield rows, pa.Table.from_batches([sent]), done / total

    def format_of(self, path: Path) -> Format:
        """Return the format implied by the file name, or else the format of the training files."""
        return format_of(path) or self.config.data.format or "csv"

    def incompatible_changes(self, choices: Mapping[str, Any]) -> list[str]:
        before, now = (_reading_of(given) for given in (choices, self.config.choices))
        return [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]

    def of_texts(self, texts: Mapping[str, str], optional: Collection[str] = ()) -> pa.RecordBatch:
        features = self.config.features
        unknown = [name for name in texts if name not in features]
        missing = [name for name in features if name not in texts and name not in optional]
        hint = did_you_mean(unknown, features)
        if unknown:
            raise DataError(
                f"{listed(unknown, 5)} are not columns of the model. Expected {listed(list(features), 20)}.{hint}"
            )
        if missing:
            raise DataError(f"the row lacks {listed(missing, 20)}. Pass '' for a missing value.")
        for name, text in texts.items():
            separator = features[name].separator
            is_other = re.match(r"\[.*\]$", text) or (separator not in text and re.search("[|;,]", text))
            if features[name].is_list and is_other:
                raise DataError(
                    f"--{name} is {text!r}, expected elements separated by {separator!r}, such as "
                    f"'a{separator}b'; for a single element, pass '{text}{separator}'."
                )
        row = pa.RecordBatch.from_pydict({name: pa.array([text], pa.string()) for name, text in texts.items()})
        reading = self._reading(replace(self.config.data, format="csv"), set(features).difference(texts))
        return reading.typed(row, _THE_ROW, 0)

    def as_texts(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return a request row as strings, the reverse of `of_texts`."""
        return {name: _text(row[name], column) for name, column in self.config.features.items() if name in row}

    def _reading(self, files: FilesConfig, left_out: Collection[str]) -> _Reading:
        columns = {name: column for name, column in self.config.features.items() if name not in left_out}
        return _Reading(files=files, columns=columns, labels={}, names={})


def _text(value: Any, column: ColumnConfig) -> str:
    if value is None:
        return ""
    if column.is_list:
        elements = column.separator.join(str(element) for element in value)
        return elements if len(value) > 1 else f"{elements}{column.separator}"
    return time_text(value, column.format) if column.type == "timestamp" else str(value)


def _reading_of(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table options that determine how strings in requests are parsed."""
    columns = {key: column for key, column in choices.items() if key.startswith("columns.")}
    of_columns = {key: [column[name] for name in _READING] for key, column in columns.items()}
    return of_columns | {key: choices.get(key) for key in _READING_FILES}


def _check_columns(paths: Sequence[Path], reading: _Reading) -> dict[str, list[Path]]:
    """Return the files without a column, keyed by a note. Raise DataError if all lack one."""
    wanted = [*reading.columns, *reading.labels]
    lacking: dict[str, list[Path]] = {name: [] for name in wanted}
    for path in paths:
        names = names_in(path, reading.files)
        for name in set(wanted).difference(names):
            lacking[name].append(path)
    if missing := [name for name in wanted if len(lacking[name]) == len(paths)]:
        shown = listed(list(map(repr, missing)), 5)
        raise DataError(
            f"{path} has no column {shown}. It has {', '.join(names[:12])}{', …' if len(names) > 12 else ''}. Fix this "
            f"file or the recipe file.{did_you_mean(missing[:3], names)}"
        )
    return {f"from files without column {name!r}": of for name, of in lacking.items() if of}


def _typed_batches(reading: _Reading, extents: Sequence[Extent]) -> Iterator[pa.RecordBatch]:
    for extent in extents:
        done = 0
        for batch in read(extent, reading.files, reading.types):
            yield reading.typed(batch, extent.path, extent.first_row + done)
            done += batch.num_rows


def _text_type(column: ColumnConfig, files: FilesConfig) -> pa.DataType | None:
    if files.format == "csv":
        is_number = column.type in ("int", "float") and not column.is_list
        return TYPES[column.type] if is_number else pa.string()
    kinds = {"string": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    element = kinds.get(column.type, pa.float64() if column.format in EPOCHS else pa.string())
    return pa.list_(element) if column.is_list else element
