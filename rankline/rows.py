"""Rows in from options, CSV, Parquet or JSON lines; scores out in the same form."""

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet
from pyarrow import json as arrow_json

from workflows.artifacts import write_whole
from workflows.errors import ConfigError, DataError

FORMATS = ("csv", "parquet", "jsonl")
_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def from_options(arguments: Sequence[str]) -> pa.Table:
    """One row from `--column value` or `--column=value`; a value is read as JSON where it can be, else as text.

    Raises:
        ConfigError: an option has no value, or a value no option.
    """
    row: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        value = text if equals else next(words, None)
        if not word.startswith("--") or not name or value is None:
            raise ConfigError(f"{word!r} is not a column with a value. Example: --userId 1 --movieId 31")
        try:
            row[name] = json.loads(value)
        except ValueError:
            row[name] = value
    try:
        return pa.Table.from_pylist([row])
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"{row} is no row that can be sent: {error}") from None


def read_rows(path: str, format_name: str | None) -> tuple[pa.Table, str]:
    """Read rows from a file, or from stdin for "-".

    Args:
        path: file name or "-".
        format_name: one of FORMATS; None takes the file's ending, and JSON lines for stdin.

    Returns:
        The rows and the format they were in.

    Raises:
        ConfigError: the format cannot be told.
        DataError: the file is missing, or not of that format.
    """
    chosen = format_name or ("jsonl" if path == "-" else _SUFFIXES.get(Path(path).suffix.lower()))
    if chosen is None:
        raise ConfigError(f"the format of {path!r} is not known. Give --format {'|'.join(FORMATS)}.")
    if chosen not in FORMATS:
        raise ConfigError(f"--format is {chosen!r}. Available: {', '.join(FORMATS)}.")
    try:
        source = io.BytesIO(sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes())
        if chosen == "csv":
            return csv.read_csv(source), chosen
        if chosen == "parquet":
            return parquet.read_table(source), chosen
        return arrow_json.read_json(source), chosen
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Expected a file with rows, or - for stdin.") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as {chosen}: {error}. Give --format if it is something else.") from None


def select(rows: pa.Table, inputs: Sequence[str]) -> pa.Table:
    """The columns that a model takes; a file may hold others.

    Raises:
        DataError: one is missing.
    """
    if missing := [name for name in inputs if name not in rows.column_names]:
        raise DataError(f"the rows lack {missing}. Expected {list(inputs)}, got {rows.column_names}.")
    return rows.select(list(inputs))


def write_scores(rows: pa.Table, scores: "np.ndarray[Any, Any]", format_name: str, output: Path | None) -> None:
    """Write the rows with a column `score` beside them.

    Args:
        rows: what was scored.
        scores: [num_rows]
        format_name: one of FORMATS; the ending of `output` wins where it names one.
        output: file, written whole or not at all; None is stdout.

    Raises:
        ConfigError: Parquet would go to a terminal, or lists into CSV.
    """
    if output is not None:
        format_name = _SUFFIXES.get(output.suffix.lower(), format_name)
    elif format_name == "parquet" and sys.stdout.isatty():
        raise ConfigError("Parquet is not for a terminal. Give --output FILE.")
    scored = rows.append_column("score", pa.array(scores))
    if format_name == "csv" and (lists := [field.name for field in rows.schema if pa.types.is_nested(field.type)]):
        raise ConfigError(f"CSV cannot hold {lists}, which are lists. Give --format jsonl or parquet.")
    sink = io.BytesIO()
    if format_name == "parquet":
        parquet.write_table(scored, sink)
    elif format_name == "csv":
        csv.write_csv(scored, sink)
    else:
        sink.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in scored.to_pylist()).encode())
    if output is None:
        sys.stdout.buffer.write(sink.getvalue())
        sys.stdout.buffer.flush()
    else:
        write_whole(output, sink.getvalue())
