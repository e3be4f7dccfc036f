"""Scores any number of rows in blocks, and writes them with their scores."""

import json
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from rankline.scoring.read_rows import Block
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.machine import num_cores
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.schema.arrow_types import is_text
from rankline.workflows.storage.artifacts import output_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankline.serving.client import Client

_ROWS_AT_ONCE = 8_192
_LONG_ROWS_AT_ONCE = 1_024
"""Limit for rows that hold a history, which takes memory."""
_BLOCKS_AHEAD = 2
_FORMULA, _NUMBER = r"^[=+\-@\t\r]", r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"  # how spreadsheets interpret text

Write: TypeAlias = "Callable[[pa.Table, Mapping[str, NDArray[Any]]], None]"


def check_columns(rows: pa.Table, names: Sequence[str], format_name: str) -> None:
    """Check, before scoring, that rows can be written together with their scores."""
    if taken := next((name for name in names if name in rows.column_names), None):
        raise ConfigError(f"the rows already contain a column {taken!r}, which is reserved for the scores. Rename it.")
    if format_name == "csv" and (lists := [field.name for field in rows.schema if pa.types.is_nested(field.type)]):
        raise ConfigError(f"CSV cannot represent the list columns {lists}. Pass --output FILE.jsonl or FILE.parquet.")


def score_blocks(
    client: "Client", blocks: Iterable[Block], progress: Progress = SILENT
) -> Iterator[tuple[pa.Table, "NDArray[Any]"]]:
    """Score blocks in parallel, a few blocks ahead of the consumer, and yield their rows and scores in order."""
    step = _LONG_ROWS_AT_ONCE if client.schema.candidates else _ROWS_AT_ONCE
    begin, num_rows = time.monotonic(), 0

    def scored(block: Block, parts: "list[Future[NDArray[Any]]]") -> tuple[pa.Table, "NDArray[Any]"]:
        nonlocal num_rows
        scores = np.concatenate([part.result() for part in parts])
        num_rows += block.rows.num_rows
        rate = num_rows / (time.monotonic() - begin)
        progress.update(block.done, 1, f"{num_rows:,} rows, {rate:,.0f} rows/s")
        return block.rows, scores

    pool = ThreadPoolExecutor(num_cores())
    waiting: deque[tuple[Block, list[Future[NDArray[Any]]]]] = deque()
    try:
        for block in blocks:
            starts = range(0, max(block.sent.num_rows, 1), step)
            parts = [block.sent.slice(start, step) for start in starts]
            waiting.append((block, [pool.submit(client.predict, part) for part in parts]))
            if len(waiting) > _BLOCKS_AHEAD:
                yield scored(*waiting.popleft())
        while waiting:
            yield scored(*waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def without_score(scores: "NDArray[Any]") -> "NDArray[np.int64]":
    is_nan = np.isnan(scores) if scores.dtype.kind == "f" else np.zeros(len(scores), np.bool_)
    return np.unique(np.nonzero(is_nan)[0])


@contextmanager
def scores_to(output: Path | None, format_name: str) -> Iterator[Write]:
    """Yield a function that appends rows and their scores to a file, or to stdout if `output` is None.

    Scores have shape [num_rows], or [num_rows, num_candidates], written as lists. The file is written atomically,
    unless it is a device or a pipe.
    """
    with ExitStack() as stack:
        if output is None:
            sink: IO[bytes] = sys.stdout.buffer
        else:
            sink = stack.enter_context(stack.enter_context(output_file(output)).open("wb"))
        stack.callback(sink.flush)
        write = {"csv": _csv, "jsonl": _json_lines, "parquet": _parquet}[format_name](sink, stack)

        def write_scored(rows: pa.Table, scores: "Mapping[str, NDArray[Any]]") -> None:
            for name, column in scores.items():
                rows = rows.append_column(name, pa.array(column if column.ndim == 1 else list(column)))
            write(rows)

        yield write_scored


def _like(rows: pa.Table, first: pa.Schema) -> pa.Table:
    if rows.column_names == first.names:
        return rows
    if others := [name for name in rows.column_names if name not in first.names]:
        raise ConfigError(f"later rows contain columns {others}, which the first rows lack. Pass --format jsonl.")
    columns = [
        rows[field.name] if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type) for field in first
    ]
    return pa.table(columns, first.names)


def _csv(sink: IO[bytes], _: ExitStack) -> Callable[[pa.Table], None]:
    first: pa.Schema | None = None

    def write(rows: pa.Table) -> None:
        nonlocal first
        rows = rows if first is None else _like(rows, first)
        csv.write_csv(without_formulas(rows), sink, csv.WriteOptions(include_header=first is None))
        first = first or rows.schema

    return write


def without_formulas(rows: pa.Table) -> pa.Table:
    """Prefix strings and column names with an apostrophe if a spreadsheet would interpret them as formulas."""
    columns = []
    for column in rows.columns:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            is_one = pc.and_not(pc.match_substring_regex(column, _FORMULA), pc.match_substring_regex(column, _NUMBER))
            column = pc.if_else(
                is_one,
                pc.binary_join_element_wise(pa.scalar("'", column.type), column, pa.scalar("", column.type)),
                column,
            )
        columns.append(column)
    return pa.table(columns, [re.sub(_FORMULA, r"'\g<0>", name) for name in rows.column_names])


def _json_lines(sink: IO[bytes], _: ExitStack) -> Callable[[pa.Table], None]:
    def write(rows: pa.Table) -> None:
        for row in rows.to_pylist():
            sink.write((_json(row) + "\n").encode())

    return write


def _json(row: Any) -> str:
    """Encode a row as JSON. Dates and decimals become strings, and NaN and infinity become null."""
    try:
        return json.dumps(row, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(row), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(of_name) for name, of_name in value.items()}
    if isinstance(value, list):
        return [_finite(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parquet(sink: IO[bytes], stack: ExitStack) -> Callable[[pa.Table], None]:
    writer: parquet.ParquetWriter | None = None

    def write(rows: pa.Table) -> None:
        nonlocal writer
        if writer is None:
            writer = stack.enter_context(parquet.ParquetWriter(sink, rows.schema))
        rows = _like(rows, writer.schema)
        for field, expected in zip(rows.schema, writer.schema, strict=True):
            if is_text(field.type) and not is_text(expected.type):  # a cast would turn 00501 into 501
                raise _unfit(f"{field.name!r} is now text, but was {expected.type} in the first rows")
        try:
            writer.write_table(rows.cast(writer.schema))
        except (pa.ArrowException, ValueError) as error:
            raise _unfit(str(error)) from None

    return write


def _unfit(why: str) -> ConfigError:
    return ConfigError(f"later rows do not match the types of the first rows: {why}. Pass --format jsonl.")
