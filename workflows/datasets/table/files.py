"""Files of rows: CSV, Parquet or JSON lines, found by names and patterns, read in batches, and apart where they can be.

A CSV file without quotation marks, and a file of JSON lines, can be cut at any end of a line; Parquet at its row
groups. A compressed file, and a CSV file with quotation marks, whose cells may hold ends of lines, is read as a whole.
"""

import csv
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from workflows.artifacts import sha256_of
from workflows.datasets.table.config import FilesConfig, Format
from workflows.datasets.text_files import DigestedFile, arrow_input, unpacked
from workflows.errors import ConfigError, DataError

_SUFFIXES: Mapping[str, Format] = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
}  # fmt: skip
_BLOCK_BYTES = 1 << 22
_SHARD_BYTES = 48 << 20
_BATCH_ROWS = 1 << 16
_BLANK = re.compile(rb"(?=\n\r?\n)")

Types = Mapping[str, pa.DataType | None]
"""Column → what a reader makes of its text; None for what the reader finds."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Consecutive rows of a file.

    Attributes:
        path: absolute, for whoever reads it.
        first_row: rows of the file before them.
        num_rows: how many.
        offset: of their first byte; 0 where the file is read from its beginning.
        num_bytes: how many; None for up to the end.
        groups: row groups of a Parquet file.
        is_quoted: cells of a CSV file may hold ends of lines.
    """

    path: Path
    first_row: int
    num_rows: int
    offset: int = 0
    num_bytes: int | None = None
    groups: tuple[int, ...] = ()
    is_quoted: bool = False


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """What one pass over files found.

    Attributes:
        fingerprint: SHA-256 over names and bytes of the files.
        extents: all rows, in order.
    """

    fingerprint: str
    extents: tuple[Extent, ...]


def find_files(config: FilesConfig, directory: Path) -> tuple[Path, ...]:
    """The files that a config names, each once, sorted within a pattern or directory.

    Raises:
        DataError: a name or pattern finds nothing.
    """
    found: dict[Path, None] = {}
    for name in config.files:
        path = directory / name
        if path.is_file():
            files = [path]
        elif path.is_dir():
            files = [file for file in sorted(path.rglob("*")) if file.is_file() and format_of(file)]
            files = [file for file in files if not file.name.startswith((".", "_"))]
        else:
            files = [file for file in _matching(name, directory) if file.is_file()] if _is_pattern(name) else []
        if not files:
            lacking = "holds no CSV, Parquet or JSON lines"
            what = lacking if path.is_dir() else "is not a file, directory or pattern of files"
            raise DataError(f"{path} {what}. Expected the files that hold the rows: give others.")
        found |= dict.fromkeys(files)
    return tuple(found)


def with_format(config: FilesConfig, paths: Sequence[Path]) -> FilesConfig:
    """The config with the format of its files.

    Raises:
        ConfigError: the endings say none, or several.
    """
    if config.format is not None:
        return config
    found, *others = sorted({format_of(path) for path in paths}, key=str)
    if others or found is None:
        got = " and ".join(str(each or "unknown") for each in (found, *others))
        shown = ", ".join(path.name for path in paths[:3])
        raise ConfigError(f"the format of {shown} is {got}, expected one of csv, parquet, jsonl. Give files of one.")
    return replace(config, format=found)


def names_in(path: Path, config: FilesConfig) -> list[str]:
    """The columns of a file, in order.

    Raises:
        DataError: it is empty, cannot be read, or names a column twice.
    """
    try:
        if config.format == "parquet":
            names = list(pq.read_schema(path).names)
        elif config.format == "jsonl":
            names = list(_first_object(path))
        else:
            names = _header(path, config)
    except (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeError, LookupError) as error:
        raise unreadable(path, error, config) from None
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path} has more than one column named {', '.join(map(repr, twice))}. Rename all but one.")
    return names


def scan(paths: Sequence[Path], config: FilesConfig, *, shard_bytes: int = _SHARD_BYTES) -> Scanned:
    """Go over the bytes of files once: their checksum, and what can be read of them apart.

    Raises:
        DataError: one cannot be read, or there are no rows in any.
    """
    digest, extents = hashlib.sha256(), list[Extent]()
    for path in paths:
        try:
            of_file, found = (
                _scan_parquet(path) if config.format == "parquet" else _scan_text(path, config, shard_bytes)
            )
        except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
            raise unreadable(path, error, config) from None
        digest.update(f"{path.name} {of_file}\n".encode())
        extents += [extent for extent in found if extent.num_rows]
    if not extents:
        shown = ", ".join(str(path) for path in paths[:3])
        raise DataError(f"{shown}: no rows{', only a header' if config.format == 'csv' else ''}. Give files with rows.")
    return Scanned(fingerprint=digest.hexdigest(), extents=tuple(extents))


def read(extent: Extent, config: FilesConfig, types: Types) -> Iterator[pa.RecordBatch]:
    """The rows of an extent, in batches of some megabytes.

    Args:
        extent: which rows.
        config: how the file is written.
        types: the columns that are wanted, all of them in the file.

    Raises:
        pyarrow.ArrowException, OSError: the file cannot be read so.
    """
    if config.format == "parquet":
        with pq.ParquetFile(extent.path) as file:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=list(extent.groups), columns=list(types)):
                yield batch.select(list(types))
    elif config.format == "jsonl":
        yield from _read_json(extent, types)
    else:
        with _open_csv(extent, config, types) as reader:
            yield from reader


def unreadable(path: Path, error: Exception, config: FilesConfig) -> DataError:
    """What a library says of a file, as ours."""
    if isinstance(error, UnicodeError) or "UTF8" in str(error) or "codec" in str(error):
        return DataError(f"{path} is not {config.encoding} text ({error}). Set 'encoding' under data, such as latin-1.")
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
    return DataError(f"{path} cannot be read as {config.format}: {said}. Correct the file, or its format under data.")


def format_of(path: Path) -> Format | None:
    """What the ending of a file's name says."""
    return _SUFFIXES.get(Path(path.name.removesuffix(".gz")).suffix.lower())


def _matching(pattern: str, directory: Path) -> list[Path]:
    root = Path(Path(pattern).anchor)
    return sorted(root.glob(str(Path(pattern).relative_to(root))) if root.anchor else directory.glob(pattern))


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _header(path: Path, config: FilesConfig) -> list[str]:
    with io.FileIO(path) as file, unpacked(path, file) as text:
        lines = io.TextIOWrapper(text, config.encoding.replace("utf-8", "utf-8-sig"), newline="")
        row = next((row for row in csv.reader(lines, delimiter=config.delimiter) if row), None)
    if row is None:
        raise DataError(f"{path} is empty, expected a header and rows. Write it again, or leave it out.")
    return row if config.header else [f"column_{number}" for number in range(1, len(row) + 1)]


def _first_object(path: Path) -> dict[str, Any]:
    names: dict[str, Any] = {}
    with io.FileIO(path) as file, unpacked(path, file) as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            row = json_object(line, path, number)
            names |= row
            if number >= 1000:  # a key may be left out where it is null
                break
    if not names:
        raise DataError(f"{path} is empty, expected a JSON object a line. Write it again, or leave it out.")
    return names


def json_object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """A line as an object.

    Raises:
        DataError: it is none.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: not JSON ({error}). Expected an object a line; correct it.") from None
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number}: a JSON {type(row).__name__}, expected an object a line, {{…}}.")
    return row


# --- One pass over the bytes


def _scan_parquet(path: Path) -> tuple[str, list[Extent]]:
    metadata = pq.read_metadata(path)
    extents, first = list[Extent](), 0
    groups, rows, num_bytes = list[int](), 0, 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        groups, rows, num_bytes = [*groups, number], rows + group.num_rows, num_bytes + group.total_byte_size
        if num_bytes >= _SHARD_BYTES or number == metadata.num_row_groups - 1:
            extents.append(Extent(path=path.absolute(), first_row=first, num_rows=rows, groups=tuple(groups)))
            first, groups, rows, num_bytes = first + rows, [], 0, 0
    return sha256_of(path), extents


def _scan_text(path: Path, config: FilesConfig, shard_bytes: int) -> tuple[str, list[Extent]]:
    is_csv, is_packed = config.format == "csv", path.suffix == ".gz"
    ends, num_rows, offset, tail, is_quoted = [(0, 0)], 0, 0, b"", False
    with DigestedFile(path) as file, unpacked(path, file) as text:
        while block := text.read(_BLOCK_BYTES):
            is_quoted = is_quoted or (is_csv and b'"' in block)
            lines = tail + block
            cut = lines.rfind(b"\n") + 1
            lines, tail = lines[:cut], lines[cut:]
            num_rows += _rows_in(lines)
            offset += len(lines)
            if not is_packed and offset - ends[-1][0] >= shard_bytes:
                ends.append((offset, num_rows))
        digest = file.digest.hexdigest()
    num_rows += bool(tail.strip(b"\r\n"))
    header = int(is_csv and config.header)
    if is_quoted:
        num_rows = _rows_by_parsing(path, config) + header
    if is_quoted or is_packed:
        ends = ends[:1]
    if len(ends) > 1 and ends[-1][1] == num_rows:
        ends.pop()
    return digest, [
        Extent(
            path=path.absolute(),
            first_row=max(0, first - header),
            num_rows=max(0, until - first - (0 if first else header)),
            offset=begin,
            num_bytes=None if end is None else end - begin,
            is_quoted=is_quoted,
        )
        for (begin, first), (end, until) in zip(ends, [*ends[1:], (None, num_rows)], strict=True)
    ]


def _rows_in(lines: bytes) -> int:
    """Lines that are not blank, of whole ones."""
    count = lines.count(b"\n")
    if b"\n\n" in lines or b"\n\r\n" in lines or lines.startswith((b"\n", b"\r\n")):
        count -= sum(1 for _ in _BLANK.finditer(b"\n" + lines))
    return count


def _rows_by_parsing(path: Path, config: FilesConfig) -> int:
    names = names_in(path, config)
    whole = Extent(path=path, first_row=0, num_rows=0, is_quoted=True)
    with _open_csv(whole, config, {names[0]: pa.string()}) as reader:
        return sum(batch.num_rows for batch in reader)


# --- Rows


def _open_csv(extent: Extent, config: FilesConfig, types: Types) -> pa_csv.CSVStreamingReader:
    names = names_in(extent.path, config)
    return pa_csv.open_csv(
        arrow_input(extent.path, extent.offset, extent.num_bytes),
        read_options=pa_csv.ReadOptions(
            column_names=names,
            skip_rows=int(config.header and extent.offset == 0),
            block_size=_BLOCK_BYTES,
            encoding=config.encoding,
        ),
        parse_options=pa_csv.ParseOptions(delimiter=config.delimiter, newlines_in_values=extent.is_quoted),
        convert_options=pa_csv.ConvertOptions(
            include_columns=list(types),
            column_types={name: kind for name, kind in types.items() if kind is not None},
            null_values=list(config.missing),
            strings_can_be_null=False,
        ),
    )


def _read_json(extent: Extent, types: Types) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([(name, kind) for name, kind in types.items() if kind is not None])
    number = 0
    for lines in _lines(extent):
        try:
            table = pa_json.read_json(
                io.BytesIO(lines),
                pa_json.ReadOptions(block_size=2 * len(lines) + 1),
                pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer"),
            )
            columns = {name: _json_column(table, name) for name in types}
        except pa.ArrowInvalid:  # not JSON, or of several types: line by line
            columns = _json_by_line(lines, extent, number, types)
        number += len(next(iter(columns.values())))
        yield pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _json_column(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        return pa.nulls(len(table))
    return table[name].combine_chunks() if table[name].num_chunks != 1 else table[name].chunk(0)


def _json_by_line(lines: bytes, extent: Extent, done: int, types: Types) -> dict[str, pa.Array]:
    texts = [line for line in lines.splitlines() if line.strip()]
    first = extent.first_row + done + 1
    rows = [json_object(line, extent.path, number) for number, line in enumerate(texts, first)]
    columns = {name: [row.get(name) for row in rows] for name in types}
    for name, values in columns.items():
        lists = [number for number, value in enumerate(values, first) if isinstance(value, list)]
        if 0 < len(lists) < len(values) - values.count(None):
            raise DataError(
                f"{extent.path}, line {lists[0]}: {name!r} is a list, and none in other lines. Write one in every line."
            )
    return {name: _json_values(values) for name, values in columns.items()}


def _json_values(values: list[Any]) -> pa.Array:
    """Values of one type, or their texts."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        texts = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
        return pa.array(texts, pa.string())


def _lines(extent: Extent) -> Iterator[bytes]:
    left, tail = extent.num_bytes, b""
    with io.FileIO(extent.path) as file:
        file.seek(extent.offset)
        with unpacked(extent.path, file) as text:
            while block := text.read(_BLOCK_BYTES if left is None else min(_BLOCK_BYTES, left)):
                left = None if left is None else left - len(block)
                lines = tail + block
                cut = lines.rfind(b"\n") + 1
                tail = lines[cut:]
                if lines[:cut].strip():
                    yield lines[:cut]
    if tail.strip():
        yield tail
