"""Profile unknown files in a single pass that samples rows and counts label values.

The sample is read with the functions that later read the columns, so an inferred type fits the data as read later.
"""

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import FileIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.data.tabular.cast import NUMBER, ValueFaultError, times_of, typed_column
from rankline.workflows.data.tabular.config import ISO, ColumnConfig, FilesConfig, Format, Type
from rankline.workflows.data.tabular.csv_text import unpacked, wide_encoding
from rankline.workflows.data.tabular.files import READ_ERRORS, Extent, read, unreadable
from rankline.workflows.schema.arrow_types import holds_lists, is_text, plain_values

NULL_WORDS = (
    "na", "n/a", "#n/a", "#na", "<na>", "null", "(null)", "nil", "none", "nan", "?", "-", "--", ".", "missing",
    "unknown", "\\n", "#null!", "#div/0!", "#value!", "0000-00-00", "0000-00-00 00:00:00", "0000-00-00t00:00:00",
)  # fmt: skip
"""Common texts for missing numbers or times, in upper or lower case."""
_DATES = (
    "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d", "%d %b %Y", "%d-%b-%Y",
    "%b %d %Y", "%b %d, %Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d-%m-%y", "%d-%b-%y", "%y/%m/%d",
)  # fmt: skip
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
TIME_FORMATS = (
    ISO, *(date + clock for date, clock in product(_DATES, _CLOCKS)), "%Y-%m-%d %I:%M %p", "%Y-%m-%d %I:%M:%S %p",
    "%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S", "%d/%b/%Y:%H:%M:%S %z",
)  # fmt: skip
COMPACT_FORMATS = ("%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
"""Formats without separators: their texts are also integers."""
CLEARLY_TIME = (
    r"\d:\d\d|\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}\b|\b\d{1,2}[-/.]\d{1,2}[-/.]\d{4}\b"
    r"|\d{1,2}\.?[- ][A-Za-z]{3,9}[- ]\d{2}|[A-Za-z]{3,9} \d{1,2},? \d{4}"
)
"""Pattern of dates and times of day. Excludes dates with two-digit years, which look like versions and numbers."""
_TIME = rf"{CLEARLY_TIME}|\b\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d\d($|\s)"
_NUMBER = rf"^{NUMBER}$|^[+-]?(?i:inf(inity)?)$"
_SAMPLE_ROWS = 200_000
_SAMPLE_BYTES = 1 << 27
MAX_DISTINCT = 2_000
"""Maximum number of distinct label values that are counted."""


@dataclass(frozen=True, kw_only=True)
class Inferred:
    type: Type  # a type that fits all values
    values: pa.Array  # the values as that type, null if missing
    missing: tuple[str, ...] = ()  # texts that mark a missing value
    formats: tuple[str, ...] = ()  # for times, all formats that fit; the first one gives the smallest range of times


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str  # column name in the files
    values: pa.Array  # values as in the files, but null for blank texts and numbers that are not finite
    format: Format
    num_rows: int  # number of rows in all files
    unusable: str | None = None  # the type of the values if no role accepts it

    @property
    def holds_lists(self) -> bool:
        return holds_lists(self.values.type)

    @property
    def is_text(self) -> bool:
        return is_text(self.values.type)

    @cached_property
    def elements(self) -> Inferred:
        values = self.values.flatten() if self.holds_lists else self.values
        return infer(values, has_words=self.format == "csv" and self.is_text)

    @property
    def missing_share(self) -> float:
        rows = self.values if self.holds_lists else self.elements.values
        return float(rows.null_count / max(len(rows), 1))

    @property
    def num_present(self) -> int:
        """Number of rows in all files that have a value, estimated if the sample is incomplete."""
        return round(self.num_rows * (1 - self.missing_share))

    @cached_property
    def distinct(self) -> tuple[pa.Array, NDArray[np.int64]]:
        """The distinct values in the sample and their counts. For a list column, the values are the list elements."""
        found, counts = self.elements.values.drop_null().value_counts().flatten()
        return found, counts.to_numpy()

    @property
    def is_whole(self) -> bool:
        return len(self.values) == self.num_rows

    @cached_property
    def num_distinct(self) -> int:
        """Number of distinct values in all files, estimated as in Chao (1984) if the sample is incomplete."""
        values, counts = self.distinct
        if self.is_whole:
            return len(values)
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        estimate = len(values) + once * (once - 1) // (2 * (twice + 1))
        return estimate if self.holds_lists else min(estimate, self.num_present)


@dataclass(frozen=True, kw_only=True)
class Profile:
    columns: Mapping[str, Column]  # columns in file order
    counts: Mapping[str, Mapping[Any, int] | None]  # label → counts of its values; None if there are too many
    num_rows: int  # number of rows in all files


def profile(
    extents: Sequence[Extent],
    config: FilesConfig,
    names: Mapping[Path, Sequence[str]],
    labels: Collection[str],
    *,
    progress: Progress = SILENT,
    sample_rows: int = _SAMPLE_ROWS,
) -> Profile:
    columns = {name: _Builder(is_counted=name in labels) for of_file in names.values() for name in of_file}
    total, done = sum(extent.num_rows for extent in extents), 0
    row_bytes = sum(path.stat().st_size for path in names) / total
    share = min(sample_rows, _SAMPLE_BYTES / row_bytes) / total
    rng = np.random.default_rng(0)
    for extent in extents:
        types = {name: pa.string() if config.format == "csv" else None for name in names[extent.path]}
        for batch in read(extent, config, types):
            # Sample randomly rather than every n-th row, which would never take two adjacent rows of a user.
            rows = None if share >= 1 else pa.array(np.flatnonzero(rng.random(batch.num_rows) < share))
            for name, column in columns.items():
                column.add(batch.column(name) if name in types else pa.nulls(batch.num_rows), rows)
            done += batch.num_rows
            progress.update(done, total, f"{done:,} rows")
    assert config.format is not None
    return Profile(
        columns={name: column.built(name, config.format, done) for name, column in columns.items()},
        counts={name: columns[name].counts for name in labels},
        num_rows=done,
    )


class _Builder:
    def __init__(self, *, is_counted: bool) -> None:
        self.is_counted = is_counted
        self.counts: Counter[Any] | None = Counter()
        self._parts: list[pa.Array] = []
        self._unusable: str | None = None

    def add(self, values: pa.Array, rows: pa.Array | None) -> None:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        elif holds_lists(values.type) and pa.types.is_dictionary(values.type.value_type):
            values = values.cast(pa.large_list(values.type.value_type.value_type))
        if not _is_usable(values.type):
            self._unusable, values = str(values.type), pa.nulls(len(values))
        if self.is_counted and not holds_lists(values.type):
            self._count(_usual(values))
        self._parts.append(_usual(values if rows is None else values.take(rows)))

    def _count(self, values: pa.Array) -> None:
        distinct, counts = values.drop_null().value_counts().flatten()
        if self.counts is not None and len(distinct) <= MAX_DISTINCT:
            texts = [value.strip() if isinstance(value, str) else value for value in distinct.to_pylist()]
            for text, count in zip(texts, counts.to_pylist(), strict=True):
                self.counts[text] += count
        if len(distinct) > MAX_DISTINCT or len(self.counts or ()) > MAX_DISTINCT:
            self.counts = None

    def built(self, name: str, kind: Format, num_rows: int) -> Column:
        values = _joined(self._parts)
        if values is None:
            self._unusable = " and ".join(sorted({str(part.type) for part in self._parts}))
            values = pa.nulls(sum(map(len, self._parts)))
        return Column(name=name, values=values, format=kind, num_rows=num_rows, unusable=self._unusable)


def _joined(parts: Sequence[pa.Array]) -> pa.Array | None:
    """Concatenate arrays after promoting them to a common type, or else converting them to strings. Return None if
    neither is possible.
    """
    try:
        tables = [pa.table({"values": part}) for part in parts]
        return pa.concat_tables(tables, promote_options="permissive")["values"].combine_chunks()
    except pa.ArrowException:
        texts = [_read_as(part, "string") for part in parts]
        return None if any(part is None for part in texts) else pa.concat_arrays(texts)


def _is_usable(kind: pa.DataType) -> bool:
    if holds_lists(kind) and not holds_lists(kind.value_type):
        return _is_usable(kind.value_type)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return is_number or is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind) or is_time(kind)


def is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _usual(values: pa.Array) -> pa.Array:
    kind = values.type
    if is_text(kind):
        return pc.if_else(pc.equal(pc.utf8_trim_whitespace(values), ""), None, values)
    if pa.types.is_floating(kind):
        values = values.cast(pa.float64())
        return pc.if_else(pc.is_finite(values), values, None)
    return plain_values(values).cast(pa.timestamp("us")) if is_time(kind) else values


# --- Types


def infer(values: pa.Array, *, has_words: bool) -> Inferred:
    kind = values.type
    if pa.types.is_boolean(kind):
        return Inferred(type="bool", values=plain_values(values))
    if is_time(kind):
        return Inferred(type="timestamp", values=plain_values(values), formats=(ISO,))
    return _infer_text(pc.utf8_trim_whitespace(values), has_words) if is_text(kind) else _infer_number(values)


def _infer_number(values: pa.Array) -> Inferred:
    if pa.types.is_null(values.type):
        return Inferred(type="string", values=values)
    if (whole := _read_as(values, "int")) is not None and not _is_rounded(values):
        return Inferred(type="int", values=whole)
    if pa.types.is_integer(values.type) or _is_rounded(values):
        return Inferred(type="string", values=_read_as(values, "string"))
    return Inferred(type="float", values=_read_as(values, "float"))


def _is_rounded(values: pa.Array) -> bool:
    """Whether a decimal column contains integers that are too large for float64 to represent exactly."""
    if not pa.types.is_decimal(values.type) or values.type.scale > 0 or values.null_count == len(values):
        return False
    extremes = pc.min_max(values).as_py()
    return bool(max(abs(extremes["min"]), abs(extremes["max"])) > 1 << 53)


def _infer_text(texts: pa.Array, has_words: bool) -> Inferred:
    words, values = (), texts
    if has_words:
        distinct = texts.unique().drop_null()
        are_words = pc.is_in(pc.utf8_lower(distinct), value_set=pa.array(NULL_WORDS, distinct.type))
        words = tuple(sorted(distinct.filter(are_words).to_pylist()))
        values = pc.if_else(pc.is_in(texts, value_set=pa.array(words, texts.type)), None, texts)
    present = values.drop_null()
    if not len(present):
        return Inferred(type="string", values=values)
    if are_numbers(present).all():
        if _are_codes(present):
            return Inferred(type="string", values=texts)
        numbers = _read_as(values, "float")
        whole = _read_as(values, "int") if pc.all(pc.equal(numbers, pc.floor(numbers))).as_py() else None
        kind: Type = "float" if whole is None else "int"
        return Inferred(type=kind, values=numbers if whole is None else whole, missing=words)
    if has_words and (flags := _read_as(values, "bool")) is not None:
        return Inferred(type="bool", values=flags, missing=words)
    times = {form: times_of(values, form) for form in possible_formats(present)}
    formats = [form for form, found in times.items() if found.null_count == values.null_count]
    if formats:
        formats.sort(key=lambda form: _span(times[form]))
        return Inferred(type="timestamp", values=times[formats[0]], missing=words, formats=tuple(formats))
    return Inferred(type="string", values=texts)


def _span(micros: pa.Array) -> int:
    extremes = pc.min_max(micros).as_py()
    return int(extremes["max"] - extremes["min"])


def _are_codes(numbers: pa.Array) -> bool:
    """Whether numeric strings should stay strings because they are integers with leading zeros or more than 64 bits."""
    if not pc.all(pc.match_substring_regex(numbers, r"^-?\d+$")).as_py():
        return False
    return bool(pc.any(pc.match_substring_regex(numbers, r"^-?0\d")).as_py()) or _read_as(numbers, "int") is None


def _read_as(values: pa.Array, kind: Type) -> pa.Array | None:
    try:
        return typed_column(values, ColumnConfig(type=kind, role="ignored"))
    except ValueFaultError:
        return None


def are_numbers(texts: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False)
    return found


def possible_formats(texts: pa.Array) -> list[str]:
    few = texts.drop_null().slice(0, 1_000).unique()
    if not look_like_times(few):
        return []
    return [form for form in TIME_FORMATS if times_of(few, form).null_count < len(few)]


def look_like_times(texts: pa.Array, pattern: str = _TIME) -> bool:
    matches = pc.match_substring_regex(texts, pattern)
    return bool((pc.mean(matches.cast(pa.int64())).as_py() or 0) > 0.5)


_DELIMITERS = ",\t;|"
_FIRST_BYTES = 1 << 17
"""Bytes read from the start of a file; the csv module accepts cells of that length."""
_FIRST_LINES = 1_000


def as_written(path: Path, config: FilesConfig) -> FilesConfig:
    try:
        with FileIO(path) as file, unpacked(path, file) as packed:
            head = packed.read(_FIRST_BYTES)
        encoding = wide_encoding(path, config.encoding) or _encoding(head)
        text = codecs.getincrementaldecoder(encoding.replace("utf-8", "utf-8-sig"))().decode(head)
    except READ_ERRORS as error:
        raise unreadable(path, error, config) from None
    lines = [line for line in text.splitlines()[:5] if line.strip()]
    if not lines:
        return replace(config, encoding=encoding)
    best = max(_DELIMITERS, key=lambda sign: (min(line.count(sign) for line in lines), -_DELIMITERS.index(sign)))
    delimiter = best if best in lines[0] else ","
    # Python 3.10's csv module rejects zero bytes. `read_header` reports them.
    reader = csv.reader(io.StringIO(text.replace("\0", " "), newline=""), delimiter=delimiter)
    rows = [row for row, _ in zip(reader, range(_FIRST_LINES), strict=False) if row]
    return replace(config, encoding=encoding, delimiter=delimiter, header=_has_header(rows))


def _encoding(head: bytes) -> str:
    if head[::2].count(0) > len(head) / 4:
        return "utf-16-be"
    if head[1::2].count(0) > len(head) / 4:
        return "utf-16-le"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
        return "utf-8"
    except UnicodeError:
        has_controls = any(0x80 <= byte < 0xA0 for byte in head)  # of Latin 1; Windows has the Euro sign there, for one
    try:
        return "cp1252" if has_controls and head.decode("cp1252") else "latin-1"
    except UnicodeError:
        return "latin-1"


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row contains column names, judged by the rows below."""
    first, *others = rows
    numbers = [float(cell) for cell in first if _is_number(cell)]
    columns = list(zip(*(row for row in others if len(row) == len(first)), strict=True))
    if not numbers or not columns:
        return True
    if len(set(numbers)) < len(numbers):  # names would not repeat
        return False
    if all(number.is_integer() for number in numbers):
        are_years = all(1900 <= number <= 2100 for number in numbers)
        if (are_years or len(numbers) > 2) and np.all(np.diff(numbers) == 1) and len(numbers) > 1:
            return True
    for cell, column in zip(first, columns, strict=True):
        below = [text for text in column if text.strip() and text.strip().lower() not in NULL_WORDS]
        are_numbers = [_is_number(text) for text in below]
        if not below or not cell.strip() or cell.strip().lower() in NULL_WORDS:
            continue
        if _is_number(cell):
            is_name = not any(are_numbers)
        else:
            is_name = all(are_numbers) or (cell not in below and len(set(below)) < len(below) / 2)
        if is_name:
            return True
    return False


def _is_number(text: str) -> bool:
    return re.fullmatch(rf"\s*{NUMBER}\s*", text) is not None
