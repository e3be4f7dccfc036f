"""Reads rows from command-line options, or in blocks from CSV, Parquet or JSON lines files."""

import io
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet
from pyarrow import json as arrow_json

from rankline.serving.client.schema import check_distinct
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.core.formatting import did_you_mean, listed
from rankline.workflows.core.validation import is_number
from rankline.workflows.data.autodetect.profile import as_written
from rankline.workflows.data.tabular.config import FilesConfig
from rankline.workflows.data.tabular.csv_text import first_fault, unpacked
from rankline.workflows.data.tabular.files import READ_ERRORS, parquet_batches, problem_of_file
from rankline.workflows.data.tabular.files import format_of as suffix_format
from rankline.workflows.schema.arrow_types import numbers_as_written

if TYPE_CHECKING:
    from rankline.serving.client import ModelSchema
    from rankline.workflows.preprocess.dataset import Requests

FORMATS = ("csv", "parquet", "jsonl")
_SHOWN = 5
_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 65_536
_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def from_options(arguments: Sequence[str]) -> dict[str, str]:
    """Parse `--column value` and `--column=value` into a mapping from column names to strings."""
    row: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        value = text if equals else next(words, None)
        if not word.startswith("--") or not name or value is None:
            raise ConfigError(
                f"{word!r} is invalid, expected column options with values, such as --userId 1 --movieId 31"
            )
        if name in row:
            raise ConfigError(f"--{name} is passed twice: {row[name]!r} and {value!r}. Pass each column only once.")
        row[name] = value
    return row


def text_columns(schema: "ModelSchema") -> list[str]:
    return [column.name for column in schema.columns if column.values.datatype == "BYTES" and not column.lengths]


def typed_row(texts: Mapping[str, str], text_columns: Collection[str]) -> pa.Table:
    """Return a one-row table, parsing each value as JSON if possible and keeping it as a string otherwise.

    `null` is missing, and so is an empty value in a column that is not text. Values of `text_columns` stay strings, to
    preserve values such as 00123456 or 5e104321.
    """
    row: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            row[name] = text if name in text_columns and text != "null" else json.loads(text or "null")
        except ValueError:
            row[name] = text
    try:
        return pa.Table.from_pylist([row])
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"{row} cannot be sent as a row: {error}") from None


def format_of(path: str | None, format_name: str | None, requests: "Requests | None" = None) -> str:
    """Return the format of the rows to score, inferring it from the file name or content if necessary.

    The order of precedence is the suffix, `format_name`, a less specific suffix, the recipe, and the content of stdin.
    """
    if format_name not in (None, *FORMATS):
        raise ConfigError(f"--format is {format_name!r}. Available: {', '.join(FORMATS)}.")
    if path is None:
        return format_name or "jsonl"
    if path == "-":
        return format_name or _format_of_stdin()
    if Path(path).is_dir():
        raise DataError(f"{path} is a directory, expected a file that contains rows. Pass one file, or - for stdin.")
    if problem := problem_of_file(Path(path)):
        raise DataError(f"{path} {problem}. Pass a file that contains rows, or - for stdin.")
    chosen = _SUFFIXES.get(Path(path).suffix.lower(), format_name)
    if chosen is None:
        chosen = suffix_format(Path(path)) if requests is None else requests.format_of(Path(path))
    if chosen is None:
        raise _unknown_format(path)
    return chosen


def _format_of_stdin() -> str:
    begin = cast(io.BufferedReader, sys.stdin.buffer).peek(4).lstrip()
    if begin.startswith(b"PAR1"):
        return "parquet"
    return "jsonl" if begin[:1] in (b"", b"{", b"[") else "csv"


def output_format_of(output: Path | None, format_name: str | None, input_format: str) -> str:
    """Return the output format: from the file suffix if it is known, else `format_name`, else the input format."""
    chosen = format_name or input_format
    if output is not None:
        if output.suffix and format_name is None and output.suffix.lower() not in _SUFFIXES:
            raise _unknown_format(str(output))
        return _SUFFIXES.get(output.suffix.lower(), chosen)
    if chosen == "parquet" and sys.stdout.isatty():
        raise ConfigError("Parquet cannot be written to a terminal. Pass --output FILE, or --format csv or jsonl.")
    return chosen


def _unknown_format(path: str) -> ConfigError:
    return ConfigError(f"the format of {path!r} is unknown. Pass --format {'|'.join(FORMATS)}.")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive rows of a file.

    Attributes:
        rows: the rows as shown.
        sent: the rows as sent to the model.
        done: share of the file that has been read so far, in [0, 1].
    """

    rows: pa.Table
    sent: pa.Table
    done: float = 0.0


def as_typed(row: pa.Table, texts: Mapping[str, str]) -> pa.Table:
    """Replace the integer timestamps of a row with the dates that the user typed."""
    for place, field in enumerate(row.schema):
        if pa.types.is_integer(field.type) and not is_number(texts.get(field.name) or "nan"):
            row = row.set_column(place, field.name, pa.array([texts[field.name]]))
    return row


@contextmanager
def stdin_as_file(format_name: str) -> Iterator[Path]:
    """Copy standard input to a temporary file, and refer to the file as stdin in error messages."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / f"stdin.{format_name}"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield path
        except DataError as error:
            raise DataError(str(error).replace(str(path), "stdin")) from None


def read_blocks(path: Path, format_name: str, schema: "ModelSchema | None" = None) -> Iterator[tuple[pa.Table, float]]:
    """Yield blocks of rows, each with the fraction of the file read so far, using bounded memory.

    Without a schema, the types of CSV columns are inferred. With a schema, they are inferred only for the model's
    columns; other columns keep their text. There is at least one block, which may be empty.
    """
    readers = {"csv": _csv_blocks, "jsonl": _json_blocks, "parquet": _parquet_blocks}
    try:
        if not path.stat().st_size:
            raise DataError(f"{path} is empty. Expected rows to score.")
        yield from readers[format_name](path, schema)
    except READ_ERRORS as error:
        raise DataError(
            f"{path} cannot be read as {format_name}: {error}. Use the matching file extension, or pass --format."
        ) from None


def _csv_blocks(path: Path, schema: "ModelSchema | None") -> Iterator[tuple[pa.Table, float]]:
    written = replace(as_written(path, FilesConfig(files=(str(path),), format="csv")), header=True)
    if written.encoding.startswith(("utf-16", "utf-32")):
        raise DataError(f"{path} is {written.encoding} text, expected UTF-8. Save it as UTF-8.")
    parse, is_checked = csv.ParseOptions(delimiter=written.delimiter), False
    with _opened(path) as (stream, share):
        header = stream.readline()
        names = csv.read_csv(io.BytesIO(header), csv.ReadOptions(encoding=written.encoding), parse).column_names
        texts, others = ((), ()) if schema is None else (text_columns(schema), _not_taken(names, schema))
        convert = csv.ConvertOptions(column_types=dict.fromkeys((*texts, *others), pa.string()))
        for number, lines in enumerate(_whole_lines(stream, are_quoted=True)):
            if number and not lines:
                break
            content = lines if number else header.rstrip(b"\r\n") + b"\n" + lines
            if b'"' in content and not is_checked:
                is_checked = True
                if fault := first_fault(path, written):
                    raise fault
            options = csv.ReadOptions(column_names=names if number else None, encoding=written.encoding)
            parse.newlines_in_values = b'"' in content
            rows = csv.read_csv(io.BytesIO(content), options, parse, convert)
            yield numbers_as_written(_empty_to_null(rows, texts), others), share()


def _not_taken(names: Iterable[str], schema: "ModelSchema") -> list[str]:
    taken = {column.name for column in schema.columns}
    return [name for name in names if name not in taken]


def _json_blocks(path: Path, _: "ModelSchema | None") -> Iterator[tuple[pa.Table, float]]:
    with _opened(path) as (stream, share):
        for number, lines in enumerate(_whole_lines(stream)):
            if number and not lines.strip():
                break
            options = arrow_json.ReadOptions(block_size=max(len(lines), 1))
            yield arrow_json.read_json(io.BytesIO(lines), options), share()


def _parquet_blocks(path: Path, _: "ModelSchema | None") -> Iterator[tuple[pa.Table, float]]:
    with parquet.ParquetFile(path) as file:
        done, num_rows = 0, file.metadata.num_rows
        for batch in parquet_batches(file, _BLOCK_ROWS, range(file.num_row_groups)):
            done += batch.num_rows
            yield pa.Table.from_batches([batch]), done / num_rows
        if not num_rows:
            yield file.schema_arrow.empty_table(), 1.0


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], Callable[[], float]]]:
    """Yield a stream of the decompressed file, and a function that returns the fraction of the file read so far."""
    num_bytes = path.stat().st_size
    with io.FileIO(path) as file, unpacked(path, file) as stream:
        yield cast(IO[bytes], stream), lambda: file.tell() / num_bytes


def _whole_lines(stream: IO[bytes], *, are_quoted: bool = False) -> Iterator[bytes]:
    """Yield chunks of `stream` that end at a line break outside quotes, followed by an empty chunk."""
    while block := stream.read(_BLOCK_BYTES):
        lines = [block, stream.readline()]
        is_open = are_quoted and sum(line.count(b'"') for line in lines) % 2
        while is_open and (line := stream.readline()):
            lines.append(line)
            is_open ^= line.count(b'"') % 2
        yield b"".join(lines)
    yield b""


def _empty_to_null(rows: pa.Table, columns: Collection[str]) -> pa.Table:
    """Replace empty strings with nulls. Arrow's default null values would also include the country code NA."""
    for place, name in enumerate(rows.column_names):  # names may be duplicated
        if name in columns:
            texts = rows.column(place)
            rows = rows.set_column(place, name, pc.if_else(pc.equal(texts, ""), None, texts))
    return rows


def select(rows: pa.Table, schema: "ModelSchema") -> pa.Table:
    """Select the model's input columns. Additional columns are dropped, and optional columns may be missing."""
    taken = {column.name for column in schema.columns}
    required = [column.name for column in schema.columns if column.is_required]
    if missing := [name for name in required if name not in rows.column_names]:
        unused = [name for name in rows.column_names if name not in required]
        hint = did_you_mean(unused, missing)
        raise DataError(f"the rows are missing columns {missing}. Expected {required}, got {rows.column_names}.{hint}")
    names = [name for name in rows.column_names if name in taken]
    check_distinct(names, "the rows")
    return rows.select(names)


def missing_columns(sent: Collection[str], optional: Iterable[str], given: Iterable[str]) -> str:
    """Return a message that names the optional columns missing from the rows, or an empty string if there are none."""
    missing = [name for name in optional if name not in sent]
    if unread := [name for name in missing if name in given]:
        raise DataError(
            f"the exported model requires {listed(list(map(repr, unread)), _SHOWN)}, which the recipe no longer reads. "
            "Use the recipe that the model was trained with, or train and export again."
        )
    shown = listed(list(map(repr, missing)), _SHOWN)
    if hint := did_you_mean([name for name in given if name not in sent], missing):
        raise DataError(
            f"the rows have no column {shown}.{hint} If a column of the rows is misspelled, rename or remove it."
        )
    return f"scored as missing because the rows have no {shown}" if missing else ""
