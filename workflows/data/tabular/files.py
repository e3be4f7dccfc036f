"""CSV, Parquet and JSON Lines files, found by name or pattern and read in batches.

JSON lines, and CSV without cells that span lines, can be split at any line end, and Parquet between row groups. Other
CSV files, compressed files and files in UTF-16 are read as a whole.

Directories named KEY=VALUE directly above a file (Hive partitioning) become text columns, unless the file has a column
of that name. All columns have Arrow's plain types, see `rankline.workflows.schema.arrow_types`.
"""

import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from rankline.workflows.core.errors import ArtifactError, ConfigError, DataError
from rankline.workflows.core.formatting import natural_order
from rankline.workflows.data.tabular.config import FilesConfig, Format
from rankline.workflows.data.tabular.csv_text import (
    DigestedFile,
    arrow_input,
    first_fault,
    opened,
    read_header,
    unpacked,
    wide_encoding,
)
from rankline.workflows.schema.arrow_types import holds_lists, of_plain_type
from rankline.workflows.storage.artifacts import MANIFEST, Manifest, sha256_of

_SUFFIXES: Mapping[str, Format] = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
}  # fmt: skip
_BLOCK_BYTES = 1 << 21  # fits in the CPU caches
SHARD_BYTES = 48 << 20  # about 200,000 rows of Criteo, slightly less than one NVTabular partition
_BATCH_ROWS = 1 << 16
NUMBERS = (pa.int64(), pa.float64())
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_OF_PROGRAMS = ("pyvenv.cfg", "config.pbtxt")
_OF_MLFLOW = ("mlruns", "mlartifacts")

Types = Mapping[str, pa.DataType | None]
"""Column → type to read it as; None to infer the type."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    path: Path  # absolute path, because other processes may read the file
    first_row: int  # number of rows in the file before this extent
    num_rows: int
    offset: int = 0  # position of the first byte; 0 if the file is read from its beginning
    num_bytes: int | None = None  # number of bytes; None to read up to the end of the file
    groups: tuple[int, ...] = ()  # row groups of a Parquet file
    is_quoted: bool = False  # whether cells of a CSV file contain line breaks


@dataclass(frozen=True, kw_only=True)
class Scanned:
    fingerprint: str
    extents: tuple[Extent, ...]


def problem_of_file(path: Path) -> str:
    """Return why a path is not a file, such as "does not exist", or an empty string if it is one."""
    if path.is_file():
        return ""
    return "is a directory" if path.is_dir() else "is not a regular file" if path.exists() else "does not exist"


def find_files(config: FilesConfig, directory: Path) -> tuple[Path, ...]:
    """Return the distinct files named by a config, sorted within each pattern or directory.

    A directory stands for all files below it in the config's format, or in any known format if none is set. Files and
    directories whose names begin with "." or "_", and outputs of Rankline, MLflow and Triton are excluded.

    Raises:
        DataError: a name or pattern matches no files.
    """
    found: dict[Path, None] = {}
    for name in config.files:
        path = directory / name
        if path.is_file():
            files = [path]
        elif path.is_dir():
            files = [file for file in _below(path) if (form := format_of(file)) and config.format in (None, form)]
        else:
            files = _matching(name, directory)
        if not files:
            lacking = f"contains no {config.format or 'CSV, Parquet or JSON lines'} files"
            what = lacking if path.is_dir() else "is not a file, directory or pattern of files"
            raise DataError(f"{path} {what}. Provide the files that contain the rows.")
        found |= dict.fromkeys(files)
    return tuple(found)


def with_format(config: FilesConfig, paths: Sequence[Path]) -> FilesConfig:
    """Return the config with its file format, inferred from the file names if it is not set.

    Raises:
        ConfigError: the file names have no known ending, or different ones.
    """
    if config.format is not None:
        return config
    found, *others = sorted({format_of(path) for path in paths}, key=str)
    if others or found is None:
        got = " and ".join(str(each or "unknown") for each in (found, *others))
        shown = ", ".join(path.name for path in paths[:3])
        raise ConfigError(
            f"the format of {shown} is {got}, expected csv, parquet or jsonl. Provide files in a single format."
        )
    return replace(config, format=found)


def names_in(path: Path, config: FilesConfig) -> list[str]:
    """Return a file's column names, with partition columns first, followed by the columns in the file in order."""
    names = _own_names(path, config)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path} has more than one column named {', '.join(map(repr, twice))}. Rename all but one.")
    return [*(name for name in _partitions(path) if name not in names), *names]


def _own_names(path: Path, config: FilesConfig) -> Sequence[str]:
    try:
        if config.format == "parquet":
            return list(pq.read_schema(path).names)
        if config.format == "jsonl":
            status = path.stat()
            return _keys_of(path.absolute(), status.st_size, status.st_mtime_ns)
        return read_header(path, config).names
    except (*READ_ERRORS, LookupError) as error:  # LookupError: unknown encoding
        raise unreadable(path, error, config) from None


def scan(paths: Sequence[Path], config: FilesConfig, *, shard_bytes: int = SHARD_BYTES) -> Scanned:
    """Scan files once to compute a fingerprint and the extents that can be read independently."""
    digest, extents = hashlib.sha256(), list[Extent]()
    for path in paths:
        try:
            of_file, found = (
                _scan_parquet(path) if config.format == "parquet" else _scan_text(path, config, shard_bytes)
            )
        except READ_ERRORS as error:
            raise unreadable(path, error, config) from None
        digest.update(f"{[*_partitions(path).items()] or ''}{path.name} {of_file}\n".encode())
        extents += [extent for extent in found if extent.num_rows]
    if not extents:
        shown = ", ".join(str(path) for path in paths[:3])
        raise DataError(
            f"{shown}: no rows found{', only a header' if config.format == 'csv' else ''}. Provide files with rows."
        )
    return Scanned(fingerprint=digest.hexdigest(), extents=tuple(extents))


def read(extent: Extent, config: FilesConfig, types: Types) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an extent in batches of a few megabytes. Columns missing from the file are null.

    Arrow's CSV reader rejects 36.0 as an integer without reporting the row. From the batch with the rejected value on,
    numeric columns are read as text. Raises DataError if the file cannot be read in its format, or has changed.
    """
    try:
        done = 0
        try:
            for batch in _read_typed(extent, config, types):
                yield batch
                done += batch.num_rows
        except pa.ArrowInvalid:
            if config.format != "csv":
                raise
            texts = {name: pa.string() if kind in NUMBERS else kind for name, kind in types.items()}
            before, done = done, 0
            for batch in _read_typed(extent, config, texts):
                done += batch.num_rows
                if done > before:
                    yield batch.slice(max(0, batch.num_rows - (done - before)))
    except READ_ERRORS as error:
        raise unreadable(extent.path, error, config) from None
    if done != extent.num_rows:
        raise DataError(
            f"{extent.path} now has {done} rows but had {extent.num_rows} when first read. Do not change files "
            "during a run. Run the command again."
        )


def _read_typed(extent: Extent, config: FilesConfig, types: Types) -> Iterator[pa.RecordBatch]:
    partitions = _partitions(extent.path)
    if config.format == "jsonl" and not partitions:
        own = types  # any line may lack any key
    else:
        names = set(_own_names(extent.path, config))
        own = {name: kind for name, kind in types.items() if name in names}
    for batch in _read(extent, config, own):
        columns = []
        for name, kind in types.items():
            if name in own:
                columns.append(of_plain_type(batch.column(name)))
            elif name in partitions:
                columns.append(pa.repeat(pa.scalar(partitions[name], pa.string()), batch.num_rows))
            else:
                columns.append(pa.nulls(batch.num_rows, pa.null() if kind is None else kind))
        yield pa.RecordBatch.from_arrays(columns, list(types))


def _read(extent: Extent, config: FilesConfig, types: Types) -> Iterator[pa.RecordBatch]:
    if config.format == "parquet":
        with pq.ParquetFile(extent.path) as file:
            yield from parquet_batches(file, _BATCH_ROWS, extent.groups, list(types))
    elif config.format == "jsonl":
        yield from _read_json(extent, types)
    else:
        with _open_csv(extent, config, types) as reader:
            yield from reader


def parquet_batches(
    file: pq.ParquetFile, num_rows: int, groups: Sequence[int], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups in batches of `num_rows`."""
    parts = [list(groups)]
    if any(pa.types.is_nested(field.type) and "dictionary<" in str(field.type) for field in file.schema_arrow):
        parts = [[group] for group in groups]  # Arrow cannot join the dictionaries of nested columns
    for part in parts:
        yield from file.iter_batches(num_rows, row_groups=part, columns=columns)


READ_ERRORS = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeError)
"""Exceptions of libraries for unreadable files; see `unreadable`."""


def unreadable(path: Path, error: Exception, config: FilesConfig) -> DataError:
    if isinstance(error, UnicodeError) or "UTF8" in str(error) or "codec" in str(error):
        return DataError(f"{path} is not {config.encoding} text ({error}). Set 'encoding' under data, such as latin-1.")
    if config.format == "csv" and isinstance(error, pa.ArrowInvalid):
        try:
            if fault := first_fault(path, config):
                return fault
        except UnicodeError as undecoded:
            return unreadable(path, undecoded, config)
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
    return DataError(f"{path} cannot be read as {config.format}: {said}. Fix the file, or its format under data.")


def format_of(path: Path) -> Format | None:
    return _SUFFIXES.get(Path(path.name.removesuffix(".gz")).suffix.lower())


def _matching(pattern: str, directory: Path) -> list[Path]:
    """Return the files that match a pattern.

    Hidden files and outputs (see `find_files`) are excluded, unless the pattern itself names hidden files.
    """
    root, parts = directory / Path(pattern).anchor, list(Path(pattern).parts[bool(Path(pattern).anchor) :])
    while parts and (root / parts[0]).exists():  # a literal name, even if it contains *
        root /= parts.pop(0)
    if not any(sign in part for part in parts for sign in "*?["):
        return []
    names_hidden = any(map(_is_hidden, parts))
    try:
        files = [file for file in sorted(root.glob("/".join(parts)), key=_order) if file.is_file()]
    except ValueError as error:
        raise DataError(f"{pattern!r} is not a valid file pattern ({error}). Use one such as logs/*.csv.") from None
    return [
        file
        for file in files
        if names_hidden or not (any(map(_is_hidden, file.relative_to(root).parts)) or _lies_in_output(file, root))
    ]


def _below(directory: Path) -> Iterator[Path]:
    for each in sorted(directory.iterdir(), key=_order):
        if _is_hidden(each.name):
            continue
        if each.is_file():
            yield each
        elif each.is_dir() and not each.is_symlink() and not _is_output(each):
            yield from _below(each)


def _order(path: Path) -> list[object]:
    return [natural_order(part) for part in path.parts]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _lies_in_output(file: Path, root: Path) -> bool:
    return any(map(_is_output, file.parents[: len(file.relative_to(root).parts) - 1]))


def _is_output(directory: Path) -> bool:
    """Whether a directory is or contains an artifact, or belongs to MLflow, Triton or a virtual environment."""
    if directory.name in _OF_MLFLOW or any((directory / name).is_file() for name in _OF_PROGRAMS):
        return True
    return any(_is_artifact(path.parent) for pattern in (MANIFEST, f"*/{MANIFEST}") for path in directory.glob(pattern))


def _is_artifact(directory: Path) -> bool:
    try:
        Manifest.read(directory)
    except ArtifactError:
        return False
    return True


def _partitions(path: Path) -> dict[str, str | None]:
    """Return the keys and values of the `KEY=VALUE` directories directly above a file, outermost first."""
    found: dict[str, str | None] = {}
    for directory in path.absolute().parents:
        key, sign, value = directory.name.partition("=")
        if not sign or not key:
            break
        found = {unquote(key): None if value in ("", _NO_PARTITION) else unquote(value)} | found
    return found


@lru_cache(maxsize=4096)
def _keys_of(path: Path, num_bytes: int, changed_ns: int) -> tuple[str, ...]:  # noqa: ARG001  (part of the cache's key)
    """Return all keys in a JSON Lines file. All lines are read, because writers may omit keys with null values."""
    names: dict[str, None] = {}
    number = 0
    for lines in _lines(Extent(path=path, first_row=0, num_rows=0)):
        try:
            names |= dict.fromkeys(_arrow_json(lines, pa.schema([])).column_names)
        except pa.ArrowInvalid:  # not JSON, or values of mixed types
            rows = [json_object(line, path, number + n) for n, line in enumerate(lines.splitlines(), 1) if line.strip()]
            names |= {name: None for row in rows for name in row}
        number += lines.count(b"\n")
    if not names:
        raise DataError(
            f"{path} is empty, expected one JSON object per line. Write it again, or remove it from the data."
        )
    return tuple(names)


def json_object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """Parse a line as a JSON object.

    Raises:
        DataError: the line is not a JSON object.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number} is not JSON ({error}). Write one JSON object per line.") from None
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number} is a JSON {type(row).__name__}, expected one object ({{…}}) per line.")
    return row


# --- One pass over the bytes


def _scan_parquet(path: Path) -> tuple[str, list[Extent]]:
    metadata = pq.read_metadata(path)
    extents, first = list[Extent](), 0
    groups, rows, num_bytes = list[int](), 0, 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        groups, rows, num_bytes = [*groups, number], rows + group.num_rows, num_bytes + group.total_byte_size
        if num_bytes >= SHARD_BYTES or number == metadata.num_row_groups - 1:
            extents.append(Extent(path=path.absolute(), first_row=first, num_rows=rows, groups=tuple(groups)))
            first, groups, rows, num_bytes = first + rows, [], 0, 0
    return sha256_of(path), extents


def _scan_text(path: Path, config: FilesConfig, shard_bytes: int) -> tuple[str, list[Extent]]:
    is_csv = config.format == "csv"
    encoding = wide_encoding(path, config.encoding) if is_csv else None
    is_whole = path.suffix == ".gz" or encoding is not None
    ends, num_rows, offset, tail, has_quotes = [(0, 0)], 0, 0, b"", False
    with DigestedFile(path) as file, opened(path, file, encoding) as text:
        while block := text.read(min(_BLOCK_BYTES, shard_bytes)):
            has_quotes = has_quotes or (is_csv and config.quote != "none" and b'"' in block)
            lines = tail + block
            cut = max(lines.rfind(b"\n"), lines.rfind(b"\r", 0, -1) if b"\r" in lines else -1) + 1
            lines, tail = lines[:cut], lines[cut:]
            num_rows += _rows_in(lines)
            offset += len(lines)
            if not is_whole and offset - ends[-1][0] >= shard_bytes:
                ends.append((offset, num_rows))
        digest = file.digest.hexdigest()
    num_rows += bool(tail.strip(b"\r\n"))
    header, is_quoted = int(is_csv and config.header), False
    if has_quotes and (found := _rows_by_parsing(path, config) + header) != num_rows:
        if fault := first_fault(path, config):
            raise fault
        num_rows, is_quoted = found, True
    if is_quoted or is_whole:
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
    """Count the complete lines that are not blank."""
    if b"\r" in lines:
        lines = lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))
    return int(np.count_nonzero(np.diff(ends, prepend=-1) > 1))


def _rows_by_parsing(path: Path, config: FilesConfig) -> int:
    names = read_header(path, config).names
    whole = Extent(path=path, first_row=0, num_rows=0, is_quoted=True)
    with _open_csv(whole, config, {names[0]: pa.string()}) as reader:
        return sum(batch.num_rows for batch in reader)


# --- Rows


@contextmanager
def _open_csv(extent: Extent, config: FilesConfig, types: Types) -> Iterator[pa_csv.CSVStreamingReader]:
    header = read_header(extent.path, config)
    encoding = wide_encoding(extent.path, config.encoding)
    with io.FileIO(extent.path) as file, opened(extent.path, file, encoding) as text:
        is_plain = encoding is None
        yield pa_csv.open_csv(
            arrow_input(extent.path, extent.offset, extent.num_bytes) if is_plain else text,
            read_options=pa_csv.ReadOptions(
                column_names=list(header.names),
                skip_rows=0 if extent.offset else header.num_lines,
                block_size=_BLOCK_BYTES,
                encoding=config.encoding if is_plain else "utf-8",
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=config.delimiter,
                quote_char=False if config.quote == "none" else '"',
                newlines_in_values=extent.is_quoted,
            ),
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
            table = _arrow_json(lines, schema)
            columns = {name: _json_column(table, name) for name in types}
            if any(types[name] is None and _is_rounded(column) for name, column in columns.items()):
                columns = _json_by_line(lines, extent, number, types)
        except pa.ArrowInvalid:  # not JSON, or values of mixed types: parse line by line
            columns = _json_by_line(lines, extent, number, types)
        number += len(next(iter(columns.values())))
        yield pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _arrow_json(lines: bytes, schema: pa.Schema) -> pa.Table:
    return pa_json.read_json(
        io.BytesIO(lines),
        pa_json.ReadOptions(block_size=2 * len(lines) + 1),
        pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer"),
    )


def _json_column(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        return pa.nulls(len(table))
    return table[name].combine_chunks() if table[name].num_chunks != 1 else table[name].chunk(0)


def _is_rounded(column: pa.Array) -> bool:
    """Whether Arrow may have rounded integers beyond int64, such as ids, by reading them as floats."""
    values = column.flatten() if holds_lists(column.type) else column
    return pa.types.is_floating(values.type) and (pc.max(pc.abs(values)).as_py() or 0) >= 1 << 63


def _json_by_line(lines: bytes, extent: Extent, done: int, types: Types) -> dict[str, pa.Array]:
    texts = [line for line in lines.splitlines() if line.strip()]
    first = extent.first_row + done + 1
    rows = [json_object(line, extent.path, number) for number, line in enumerate(texts, first)]
    columns = {name: [row.get(name) for row in rows] for name in types}
    for name, values in columns.items():
        lists = [number for number, value in enumerate(values, first) if isinstance(value, list)]
        if 0 < len(lists) < len(values) - values.count(None):
            raise DataError(
                f"{extent.path}, line {lists[0]}: {name!r} is a list here but not on other lines. Write a list on "
                "every line."
            )
    return {name: _json_values(values) for name, values in columns.items()}


def _json_values(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        if any(isinstance(value, list) for value in values):
            return pa.array(
                [None if row is None else list(map(_text_of, row)) for row in values], pa.list_(pa.string())
            )
        return pa.array(map(_text_of, values), pa.string())


def _text_of(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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
