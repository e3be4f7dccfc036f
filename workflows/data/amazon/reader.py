"""Reader for the supported file layouts of Amazon reviews.

    reviews              reviews*.json, or any *.json, *.jsonl      one review per line; optional meta*.json files with
                                                                    one item per line
    sequences            sequences.txt, item2attributes.json        one user per line, with all items in chronological
                                                                    order; item → attributes, brand first, deepest
                                                                    category last

Reviews and items may be compressed (`.gz`). Lines are JSON or, in old files, Python literals.

R. He and J. McAuley: Ups and Downs: Modeling the Visual Evolution of Fashion Trends with One-Class Collaborative
Filtering. WWW 2016. The sequences are those of K. Zhou et al.: S³-Rec. CIKM 2020.
"""

import ast
import gzip
import io
import json
import re
import warnings
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from rankline.workflows.core.errors import DataError
from rankline.workflows.data.planted_model import TRUTH
from rankline.workflows.preprocess.raw import RawData, fingerprint_of

USER_ID, ITEM_ID = "user_id", "item_id"
BRAND, PARENT, CATEGORY = "brand", "parent", "category"
"""Attributes of an item from general to specific; PARENT is the category above its category."""
NO_CATEGORY = "no_category"

_USER, _ITEM, _TIME, _PATHS = "reviewerID", "asin", "unixReviewTime", "categories"
_REVIEWS = pa.schema({_USER: pa.string(), _ITEM: pa.string(), _TIME: pa.int64()})
_ITEMS = pa.schema({_ITEM: pa.string(), BRAND: pa.string(), _PATHS: pa.list_(pa.list_(pa.string()))})
_SEQUENCES, _ATTRIBUTES = "sequences.txt", "item2attributes.json"
_LINES = re.compile(r"[^.].*\.jsonl?(\.gz)?", re.IGNORECASE)

_BLOCK_BYTES = 1 << 23
_MAX_LINE_BYTES = 1 << 26
_FEW_MALFORMED, _NUM_SHOWN = 100, 3
_BOM = b"\xef\xbb\xbf"

Ints = npt.NDArray[np.int64]


def read_amazon(path: Path, *, max_malformed_share: float = 0.01) -> RawData:
    """Read Amazon reviews from a directory in any supported layout, or from a single file.

    Malformed lines are dropped and counted, and the first ones are reported; a file may have 100 of them, or the given
    share. Reviews without a time count as the user's oldest. Repeated items are kept. Users are in order of first
    appearance, each user's items are ordered by time and then by name. An item's category is the last one of its first
    path. Memory: about 200 bytes per review.

    Raises:
        DataError: there are no such files, a file is empty, truncated or has too many malformed lines, or there are no
            reviews.
    """
    files = _find(path)
    lines = _Lines(max_malformed_share)
    rows, catalog, noticed = files.read(files.paths, lines)
    return RawData(
        rows=rows,
        catalog=catalog,
        dropped={f"malformed line: {'; '.join(lines.first)}": lines.num_malformed} if lines.num_malformed else {},
        noticed={remark: count for remark, count in noticed.items() if count},
        fingerprint=fingerprint_of(files.paths),
    )


_Read = tuple[pa.Table, pa.Table, dict[str, int]]
"""Rows, catalog, and remark → number of rows that it applies to."""


@dataclass(frozen=True, kw_only=True)
class _Files:
    paths: tuple[Path, ...]
    read: "Callable[[Sequence[Path], _Lines], _Read]"


def _find(path: Path) -> _Files:
    if path.is_file():
        return _Files(paths=(path,), read=_read_reviews)
    if not path.is_dir():
        raise DataError(f"{path} does not exist, expected a directory or file of Amazon reviews.")
    pair = path / _SEQUENCES, path / _ATTRIBUTES
    if pair[0].is_file():
        return _Files(paths=tuple(file for file in pair if file.is_file()), read=_read_sequences)
    files = [file for file in sorted(path.iterdir()) if file.is_file() and _LINES.fullmatch(file.name)]
    items = [file for file in files if _is_of_items(file)]
    others = [file for file in files if file not in items and file.name not in (TRUTH, _ATTRIBUTES)]
    reviews = [file for file in others if file.name.lower().startswith("review")] or others
    if not reviews:
        raise DataError(
            f"{path} contains no Amazon reviews. Expected {_SEQUENCES} with {_ATTRIBUTES}, reviews*.json with "
            "meta*.json, or any *.json or *.jsonl files, optionally gzipped. Pass the directory that contains these "
            "files."
        )
    for file in (*reviews, *items):
        if file.with_name(f"{file.name}.gz") in files:
            raise DataError(f"{path} contains both {file.name} and {file.name}.gz. Remove one of them.")
    return _Files(paths=(*reviews, *items), read=_read_reviews)


def _is_of_items(path: Path) -> bool:
    return path.name.lower().startswith("meta")


@dataclass
class _Lines:
    max_malformed_share: float
    num_malformed: int = 0
    first: list[str] = field(default_factory=list)

    def refuse(self, path: Path, number: int, fault: str) -> None:
        self.num_malformed += 1
        if len(self.first) < _NUM_SHOWN:
            self.first.append(f"{path.name}, line {number}: {fault}")

    def check(self, path: Path, num_lines: int, num_malformed: int) -> None:
        if num_lines == 0:
            raise DataError(f"{path} is empty, expected one review, item or user per line. Download or write it again.")
        if num_malformed > max(_FEW_MALFORMED, self.max_malformed_share * num_lines):
            raise DataError(
                f"{path}: {num_malformed:,} of {num_lines:,} lines are malformed, expected at most {_FEW_MALFORMED} "
                f"lines or {self.max_malformed_share:.1%} of the file, whichever is more. The first are: "
                f"{'; '.join(self.first)}. Fix the file."
            )


def _read_reviews(paths: Sequence[Path], lines: _Lines) -> _Read:
    is_of_items = {path: len(paths) > 1 and _is_of_items(path) for path in paths}
    reviews = _concat([_read_lines(path, _REVIEWS, lines) for path in paths if not is_of_items[path]], _REVIEWS)
    if not len(reviews):
        fault = f" {lines.first[0]}." if lines.first else ""
        raise DataError(f"{paths[0]} contains no reviews.{fault} Expected {_USER}, {_ITEM} and {_TIME} on each line.")
    times = reviews[_TIME]
    if times.null_count == len(times):
        raise DataError(
            f"{paths[0]}: no review has a {_TIME}, so the reviews cannot be ordered. Provide reviews with times."
        )
    rows = _in_order(reviews[_USER], reviews[_ITEM], times.fill_null(np.iinfo(np.int64).min).to_numpy())
    noticed = {"review without a time, treated as the oldest": times.null_count}
    names = rows[ITEM_ID].unique()
    if not any(is_of_items.values()):
        return rows, _catalog(names, None, pa.nulls(len(names), pa.list_(pa.string()))), noticed
    items = _concat([_read_lines(path, _ITEMS, lines) for path in paths if is_of_items[path]], _ITEMS)
    known = items[_ITEM].combine_chunks()
    first = np.unique(known.dictionary_encode().indices.to_numpy(), return_index=True)[1]
    noticed["item described more than once, first description kept"] = len(items) - len(first)
    unknown = names.filter(pc.invert(pc.is_in(names, value_set=known)))
    noticed["review of an item without metadata"] = _count(rows[ITEM_ID], unknown)
    items = pa.concat_tables(
        [
            items.take(pa.array(first)),
            pa.table(
                {_ITEM: unknown} | {name: pa.nulls(len(unknown), _ITEMS.field(name).type) for name in (BRAND, _PATHS)}
            ),
        ]
    )
    paths_of_items = _element(items[_PATHS].combine_chunks(), np.zeros(len(items), dtype=np.int64))
    return rows, _catalog(items[_ITEM].combine_chunks(), items[BRAND].combine_chunks(), paths_of_items), noticed


def _read_sequences(paths: Sequence[Path], lines: _Lines) -> _Read:
    users, items, num_lines = array("q"), array("q"), 0
    for number, line in _numbered_lines(paths[0]):
        num_lines += 1
        try:
            user, first, *others = array("q", map(int, line.split()))
        except (ValueError, OverflowError):
            lines.refuse(paths[0], number, f"{_shown(line)} is not a user and its items as 64-bit integers")
            continue
        users.extend([user] * (1 + len(others)))
        items.extend([first, *others])
    lines.check(paths[0], num_lines, lines.num_malformed)
    if not items:
        raise DataError(
            f"{paths[0]} contains no users with items. Expected a user followed by the user's items on each line."
        )
    rows = _in_order(_column(users), _column(items), np.arange(len(items)))
    names = rows[ITEM_ID].unique()
    if len(paths) == 1:
        return rows, _catalog(names, None, pa.nulls(len(names), pa.list_(pa.string()))), {}
    attributes = _read_attributes(paths[1])
    unknown = names.filter(pc.invert(pc.is_in(names, value_set=pa.array(list(attributes), pa.int64()))))
    every = attributes | {item: [] for item in unknown.to_pylist()}
    # The root category comes first for items without a brand, and later for items with one.
    behind = {value for values in every.values() for value in values[1:]}
    brands = [values[0] if len(values) > 1 and values[0] not in behind else None for values in every.values()]
    categories = [values[brand is not None :] for values, brand in zip(every.values(), brands, strict=True)]
    catalog = _catalog(
        pa.array(list(every), pa.int64()), pa.array(brands, pa.string()), pa.array(categories, pa.list_(pa.string()))
    )
    return rows, catalog, {"interaction with an item without attributes": _count(rows[ITEM_ID], unknown)}


def _column(ids: "array[int]") -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(np.frombuffer(ids, dtype=np.int64))])


def _read_attributes(path: Path) -> dict[int, list[str]]:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}). Download it again.") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    attributes = {}
    for item, values in document.items() if isinstance(document, dict) else [("", document)]:
        is_number = re.fullmatch(r"-?[0-9]{1,18}", item)
        if not is_number or not isinstance(values, list) or not all(isinstance(value, int | str) for value in values):
            raise DataError(
                f"{path}: item {item!r} has {_shown(str(values))}, expected a mapping from integers to "
                "lists of attributes, brand first. Fix the file."
            )
        attributes[int(item)] = [str(value) for value in values]
    return attributes


def _in_order(users: pa.ChunkedArray, items: pa.ChunkedArray, times: Ints) -> pa.Table:
    encoded = users.combine_chunks().dictionary_encode()
    chosen = items.combine_chunks().dictionary_encode()
    places = np.empty(len(chosen.dictionary), dtype=np.int32)
    places[pc.sort_indices(chosen.dictionary).to_numpy()] = np.arange(len(places))
    order = np.lexsort((places[chosen.indices.to_numpy()], times, encoded.indices.to_numpy()))
    return pa.table(
        {USER_ID: encoded.dictionary.take(encoded.indices.take(pa.array(order))), ITEM_ID: items.take(pa.array(order))}
    ).combine_chunks()


def _catalog(items: pa.Array, brands: pa.Array | None, paths: pa.ListArray) -> pa.Table:
    """Return a table with one row per item. Columns whose values are all missing are dropped, except the category."""
    lengths = pc.list_value_length(paths).fill_null(0).to_numpy().astype(np.int64)
    columns = {} if brands is None else {BRAND: _without_blanks(brands)}
    columns[PARENT] = _without_blanks(_element(paths, lengths - 2))
    columns = {name: column for name, column in columns.items() if column.null_count < len(column)}
    category = _without_blanks(_element(paths, lengths - 1)).fill_null(NO_CATEGORY)
    return pa.table({ITEM_ID: items, **columns, CATEGORY: category})


def _element(lists: pa.ListArray, places: Ints) -> pa.Array:
    """Return one element of each list, at the corresponding position in `places`, or null if it is out of range."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    is_there = (places >= 0) & (places < lengths)
    return lists.values.take(pa.array(lists.offsets.to_numpy()[:-1] + places, mask=~is_there))


def _without_blanks(texts: pa.StringArray) -> pa.StringArray:
    stripped = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.equal(stripped, ""), pa.scalar(None, pa.string()), stripped)


def _count(column: pa.ChunkedArray, values: pa.Array) -> int:
    count: int = pc.sum(pc.is_in(column, value_set=values)).as_py()
    return count


def _concat(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *tables])


def _read_lines(path: Path, schema: pa.Schema, lines: _Lines) -> pa.Table:
    """Parse one row per line with Arrow, falling back to line-by-line parsing for blocks that Arrow rejects."""
    tables, num_lines, before = [], 0, lines.num_malformed
    for first, block in _blocks(path):
        table = _by_arrow(block, schema)
        if table is None:
            table = _line_by_line(path, first, block, schema, lines)
        tables.append(table)
        num_lines = first - 1 + _num_lines(block)
    lines.check(path, num_lines, lines.num_malformed - before)
    return _concat(tables, schema)


def _by_arrow(block: bytes, schema: pa.Schema) -> pa.Table | None:
    """Parse a block with Arrow. Return None if any line is not valid JSON, does not match the schema, or lacks a user
    or an item.
    """
    if block.startswith(b"{'"):
        return None  # Python literals, like the whole file
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        table = pa_json.read_json(pa.BufferReader(block), parse_options=options).select(schema.names)
        table.validate(full=True)
    except pa.ArrowInvalid:
        return None
    needed = (name for name in (_USER, _ITEM) if name in schema.names)
    is_whole = len(table) == _num_lines(block) and not any(_has_none(table[name]) for name in needed)
    return table if is_whole else None


def _has_none(texts: pa.ChunkedArray) -> bool:
    return bool(texts.null_count or pc.any(pc.equal(texts, "")).as_py())


def _line_by_line(path: Path, first: int, block: bytes, schema: pa.Schema, lines: _Lines) -> pa.Table:
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about invalid escapes in literals
        for number, line in enumerate(block.split(b"\n"), first):
            if not line.strip():
                continue
            try:
                rows.append(_row_of(line, schema))
            except ValueError as error:
                lines.refuse(path, number, str(error))
    return pa.Table.from_pylist(rows, schema)


def _row_of(line: bytes, schema: pa.Schema) -> dict[str, Any]:
    record = _parsed(line)
    if not isinstance(record, Mapping):
        raise ValueError(f"{_shown(line)} is neither a review nor an item")
    row = {name: record.get(name) for name in schema.names}
    if not isinstance(row.get(BRAND), str):
        row.pop(BRAND, None)
    for name in (_USER, _ITEM):
        if name in row and not (isinstance(row[name], str) and row[name]):
            raise ValueError(f"{name} is {_shown(str(row[name]))}, expected a string")
    for name, value in row.items():
        if isinstance(value, str) and not _is_utf8(value):
            raise ValueError(f"{name} is {_shown(ascii(value))}, which is not UTF-8")
    if (time := row.get(_TIME)) is not None:
        if isinstance(time, bool) or not isinstance(time, int | float) or time != time // 1 or abs(time) >= 2**62:
            raise ValueError(f"{_TIME} is {_shown(str(time))}, expected whole seconds")
        row[_TIME] = int(time)
    if _PATHS in row:
        row[_PATHS] = _paths_of(row[_PATHS])
    return row


def _paths_of(value: Any) -> list[list[str]]:
    paths = [] if value is None else value
    path = paths[0] if isinstance(paths, list) and paths else []
    if not isinstance(paths, list) or not isinstance(path, list) or not all(isinstance(part, str) for part in path):
        raise ValueError(f"{_PATHS} is {_shown(str(value))}, expected a list of lists of strings")
    if not all(map(_is_utf8, path)):
        raise ValueError(f"{_PATHS} is {_shown(ascii(path))}, which is not UTF-8")
    return [path]


def _parsed(line: bytes) -> Any:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the bytes {line[error.start : error.end].hex(' ')} are not UTF-8") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise ValueError(f"{_shown(text)} is neither JSON nor a Python literal") from None


def _is_utf8(text: str) -> bool:
    """Whether the text can be encoded as UTF-8, which excludes unpaired surrogates that JSON escapes can produce."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _shown(text: str | bytes) -> str:
    shown = repr(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def _num_lines(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    for first, block in _blocks(path):
        for number, line in enumerate(block.split(b"\n"), first):
            if line.strip():
                yield number, line


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    number, held = 1, b""
    try:
        with path.open("rb") as file, _unpacked(path, file) as stream:
            while chunk := stream.read(_BLOCK_BYTES):
                chunk = chunk.removeprefix(_BOM) if number == 1 and not held else chunk
                end = chunk.rfind(b"\n") + 1
                if not end:
                    held += chunk
                    if len(held) > _MAX_LINE_BYTES:
                        raise DataError(
                            f"{path}, line {number} is longer than {_MAX_LINE_BYTES >> 20} MiB. Write the "
                            "file with one review or item per line."
                        )
                    continue
                block, held = held + chunk[:end], chunk[end:]
                yield number, block
                number += block.count(b"\n")
            if held:
                yield number, held
    except EOFError:
        raise DataError(f"{path}: the gzip data is truncated after line {number}. Download it again.") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzip data is invalid after line {number} ({error}). Download it again.") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unpacked(path: Path, file: io.BufferedReader) -> "io.BufferedReader | gzip.GzipFile":
    return gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read ({error.strerror or error}). Download it again, or fix its permissions.")
