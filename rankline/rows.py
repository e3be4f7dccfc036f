"""Rows in from options, CSV, Parquet or JSON lines; scores out in the same form."""

import io
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet
from pyarrow import json as arrow_json

from workflows.artifacts import write_whole
from workflows.errors import ConfigError, DataError
from workflows.spelling import did_you_mean

FORMATS = ("csv", "parquet", "jsonl")
_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def from_options(arguments: Sequence[str]) -> dict[str, str]:
    """Column → text of one row, from `--column value` or `--column=value`.

    Raises:
        ConfigError: an option has no value, or a value no option.
    """
    row: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        value = text if equals else next(words, None)
        if not word.startswith("--") or not name or value is None:
            raise ConfigError(f"{word!r} is not a column with a value. Example: --userId 1 --movieId 31")
        row[name] = value
    return row


def typed_row(texts: Mapping[str, str], text_columns: Collection[str]) -> pa.Table:
    """One row of values: JSON where a text can be read as it, else the text itself, and `null` is missing.

    Args:
        texts: what `from_options` found.
        text_columns: columns that hold texts, so that 00123456 or 5e104321 stays what it is.

    Raises:
        DataError: a number is too large to be sent.
    """
    row: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            row[name] = text if name in text_columns and text != "null" else json.loads(text)
        except ValueError:
            row[name] = text
    try:
        return pa.Table.from_pylist([row])
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"{row} cannot be sent as a row: {error}") from None


def format_of(path: str, format_name: str | None) -> str:
    """The format of rows: one of FORMATS, by the file's ending, else by `format_name`; else JSON lines for stdin ("-").

    Raises:
        ConfigError: it cannot be told.
        DataError: there is no such file.
    """
    if format_name not in (None, *FORMATS):
        raise ConfigError(f"--format is {format_name!r}. Available: {', '.join(FORMATS)}.")
    chosen = _SUFFIXES.get(Path(path).suffix.lower(), format_name) or ("jsonl" if path == "-" else None)
    if chosen is None:
        raise ConfigError(f"the format of {path!r} is not known. Give --format {'|'.join(FORMATS)}.")
    if path != "-" and not Path(path).is_file():
        raise DataError(f"{path} does not exist. Expected a file with rows, or - for stdin.")
    return chosen


def output_format_of(output: Path | None, format_name: str | None, input_format: str) -> str:
    """The format of scored rows: one of FORMATS, by the file's ending, else by `format_name`, else that of the rows.

    Raises:
        ConfigError: Parquet would go to a terminal.
    """
    chosen = format_name or input_format
    if output is not None:
        return _SUFFIXES.get(output.suffix.lower(), chosen)
    if chosen == "parquet" and sys.stdout.isatty():
        raise ConfigError("Parquet cannot be written to a terminal. Give --output FILE, or --format csv or jsonl.")
    return chosen


def check_columns(rows: pa.Table, format_name: str) -> None:
    """Find out that rows cannot be written with their scores before they are scored.

    Raises:
        ConfigError: lists would go into CSV.
    """
    if format_name == "csv" and (lists := [field.name for field in rows.schema if pa.types.is_nested(field.type)]):
        raise ConfigError(f"CSV cannot hold {lists}, which are lists. Give --format jsonl or parquet.")


def read_rows(path: str, format_name: str, text_columns: Collection[str]) -> pa.Table:
    """Read rows from a file, or from stdin for "-".

    Args:
        path: file name or "-".
        format_name: one of FORMATS.
        text_columns: columns that hold texts, also where CSV looks like numbers.

    Raises:
        DataError: not of that format.
    """
    try:
        source = io.BytesIO(sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes())
        if format_name == "csv":
            types = dict.fromkeys(text_columns, pa.string())
            return _empty_to_null(csv.read_csv(source, convert_options=csv.ConvertOptions(column_types=types)), types)
        if format_name == "parquet":
            return parquet.read_table(source)
        return arrow_json.read_json(source)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read as {format_name}: {error}. Give it the ending of what it is, or --format."
        ) from None


def _empty_to_null(rows: pa.Table, columns: Iterable[str]) -> pa.Table:
    """CSV has no other word for a missing text; Arrow's list of them would take the country code NA too."""
    for name in set(columns) & set(rows.column_names):
        texts = rows[name]
        filled = pc.if_else(pc.equal(texts, ""), None, texts)
        rows = rows.set_column(rows.column_names.index(name), name, filled)
    return rows


def select(rows: pa.Table, inputs: Sequence[str]) -> pa.Table:
    """The columns that a model takes; a file may hold others.

    Raises:
        DataError: one is missing.
    """
    if missing := [name for name in inputs if name not in rows.column_names]:
        unused = [name for name in rows.column_names if name not in inputs]
        hint = did_you_mean(unused, missing)
        raise DataError(f"the rows lack {missing}. Expected {list(inputs)}, got {rows.column_names}.{hint}")
    return rows.select(list(inputs))


def write_scores(rows: pa.Table, scores: "np.ndarray[Any, Any]", format_name: str, output: Path | None) -> None:
    """Write the rows with a column `score` beside them.

    Args:
        rows: what was scored.
        scores: [num_rows], or [num_rows, num_candidates], which become lists.
        format_name: one of FORMATS.
        output: file, written whole or not at all; None is stdout.
    """
    scored = rows.append_column("score", pa.array(scores if scores.ndim == 1 else list(scores)))
    sink = io.BytesIO()
    if format_name == "parquet":
        parquet.write_table(scored, sink)
    elif format_name == "csv":
        csv.write_csv(scored, sink)
    else:
        sink.write("".join(f"{_in_json(row)}\n" for row in scored.to_pylist()).encode())
    if output is None:
        sys.stdout.buffer.write(sink.getvalue())
        sys.stdout.buffer.flush()
    else:
        write_whole(output, sink.getvalue())


def _in_json(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, default=str)  # dates and decimals, which JSON has no type for
