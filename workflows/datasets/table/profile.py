"""What files hold that nothing is known about: one pass over all rows, in bounded memory.

Each batch is reduced to its distinct values and how often they occur, and those are what is tested: a test for numbers
or times is dropped for a column as soon as too much fails it. A sample of rows is kept to look for leaks in.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from workflows.datasets.table.config import FilesConfig
from workflows.datasets.table.files import Extent, names_in, read
from workflows.datasets.table.typed import FALSE, TRUE, iso_times
from workflows.hashing import hash_values
from workflows.plain_values import holds_lists, is_text, plain_values
from workflows.progress import SILENT, Progress
from workflows.sketch import NUM_REGISTERS, num_distinct_of, sketch_of_hashes

NULL_WORDS = (
    "NA",
    "N/A",
    "na",
    "n/a",
    "NULL",
    "Null",
    "null",
    "None",
    "none",
    "NaN",
    "nan",
    "?",
    "-",
    "--",
    ".",
    "missing",
)
"""What people write where a number is missing."""
TIME_FORMATS = (
    "iso", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%Y/%m/%d %H:%M:%S", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%Y%m%d",
    "%d %b %Y", "%b %d %Y", "%d-%b-%Y", "%a %b %d %H:%M:%S %Y",
)  # fmt: skip
_MOST_VALUES = 2_000
_SAMPLE_ROWS = 20_000
_SEPARATORS = "|;,"
_TIMES = (pa.types.is_date, pa.types.is_timestamp)
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


@dataclass(kw_only=True)
class Column:
    """What is known of a column so far.

    Attributes:
        name: in the files.
        is_typed: its file says what it holds, so a text is one.
        kind: "text", "number", "bool", "time", "list", "nothing", or the name of a type that cannot be used.
        element: kind of the elements of a list.
        num_rows, num_missing: of all rows.
        counts: how often each value occurs, while there are few.
        registers: HyperLogLog sketch of the values, of the elements of lists.
        num_numbers: rows whose text, or value, is a number.
        lowest, highest: of the numbers, or of the times in microseconds.
        sums: number of values, their sum, and the sums of their squares and cubes.
        is_whole: no number has a fraction.
        has_zeros: a text is a number with a zero before it, as codes are.
        words: rows that were texts, and their words.
        misfits: texts that are no numbers, and how often they occur, a few.
        formats: format → rows that are times written so.
        spans: format → the earliest and the latest of them, in microseconds.
        separators: sign → rows with it.
        is_date: no time has an hour.
    """

    name: str
    is_typed: bool = False
    kind: str = "nothing"
    element: str = "nothing"
    num_rows: int = 0
    num_missing: int = 0
    counts: "Counter[Any] | None" = field(default_factory=Counter)
    registers: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(NUM_REGISTERS, np.uint8))
    num_numbers: int = 0
    lowest: float = float("inf")
    highest: float = float("-inf")
    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))
    is_whole: bool = True
    has_zeros: bool = False
    words: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))
    misfits: "Counter[str]" = field(default_factory=Counter)
    formats: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIME_FORMATS, 0))
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    separators: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SEPARATORS, 0))
    is_date: bool = True

    @property
    def num_present(self) -> int:
        """Rows that have a value."""
        return self.num_rows - self.num_missing

    @property
    def num_distinct(self) -> int:
        """Distinct values, exact while they are few."""
        if self.counts is not None:
            return len(self.counts)
        return min(round(num_distinct_of(self.registers)), self.num_present if self.kind != "list" else 1 << 62)

    @property
    def share_of_numbers(self) -> float:
        """Of the rows that have a value."""
        return self.num_numbers / max(self.num_present, 1)

    @property
    def skewness(self) -> float:
        """Of the numbers; 0 where they are all one."""
        count, total, squares, cubes = self.sums
        if count < 3:
            return 0.0
        mean = total / count
        variance = squares / count - mean**2
        third = cubes / count - 3 * mean * squares / count + 2 * mean**3
        return float(third / variance**1.5) if variance > 1e-12 * max(mean**2, 1e-300) else 0.0


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What files hold.

    Attributes:
        columns: in the order of the files.
        num_rows: in all of them.
        sample: even over the rows, as they are in the files.
    """

    columns: Mapping[str, Column]
    num_rows: int
    sample: pa.Table


def profile(
    extents: Sequence[Extent], config: FilesConfig, *, progress: Progress = SILENT, sample_rows: int = _SAMPLE_ROWS
) -> Profile:
    """Look at all rows once.

    Args:
        extents: where they are.
        config: how the files are written.
        progress: told rows.
        sample_rows: that are kept.

    Raises:
        pyarrow.ArrowException, OSError: a file cannot be read.
    """
    total, done = sum(extent.num_rows for extent in extents), 0
    is_typed = config.format != "csv"
    columns = {name: Column(name=name, is_typed=is_typed) for name in _all_names(extents, config)}
    step, parts = max(1, total // sample_rows), list[pa.Table]()
    for extent in extents:
        in_file = set(names_in(extent.path, config))
        types = {name: pa.string() if config.format == "csv" else None for name in columns if name in in_file}
        for batch in read(extent, config, types):
            for name, column in columns.items():
                values = batch.column(name) if name in in_file else pa.nulls(batch.num_rows)
                _look_at(column, values)
            first = -done % step
            parts.append(pa.Table.from_batches([batch]).take(pa.array(np.arange(first, batch.num_rows, step))))
            done += batch.num_rows
            progress.update(done, total, f"{done:,} rows")
    return Profile(columns=columns, num_rows=done, sample=pa.concat_tables(parts, promote_options="permissive"))


def _all_names(extents: Iterable[Extent], config: FilesConfig) -> dict[str, None]:
    paths: dict[Path, None] = {extent.path: None for extent in extents}
    return {name: None for path in paths for name in names_in(path, config)}


def _look_at(column: Column, values: pa.Array) -> None:
    if not column.is_typed:
        values = pc.if_else(pc.equal(values, ""), None, values)
    column.num_rows += len(values)
    column.num_missing += values.null_count
    if values.null_count == len(values):
        return
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if holds_lists(values.type):
        column.kind, column.element = "list", _kind(values.type.value_type)
        column.counts = None
        if column.element in ("text", "number"):
            _count(column, plain_values(values.flatten().drop_null()))
        return
    kind = _kind(values.type)
    column.kind = kind if column.kind in ("nothing", kind) else "text"
    if kind == "number" and pa.types.is_decimal(values.type):
        values = plain_values(values)
    if kind in ("text", "number", "bool", "time"):
        plain = values if kind == "text" else plain_values(values)
        distinct, counts = _count(column, plain)
        {"text": _texts, "number": _numbers, "bool": _numbers, "time": _times}[kind](column, distinct, counts)


def _kind(kind: pa.DataType) -> str:
    if is_text(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "bool"
    if any(is_time(kind) for is_time in _TIMES):
        return "time"
    if any(is_number(kind) for is_number in _NUMBERS):
        return "number"
    return "nothing" if pa.types.is_null(kind) else str(kind)


def _count(column: Column, values: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """The distinct values that are there, and how often each occurs; noted in the column."""
    distinct, counts = values.drop_null().value_counts().flatten()
    numbers = counts.to_numpy()
    as_hashed = distinct.cast(pa.large_binary()) if is_text(distinct.type) else distinct.to_numpy(zero_copy_only=False)
    column.registers = np.maximum(column.registers, sketch_of_hashes(hash_values(as_hashed)))
    if column.counts is not None:
        if len(distinct) <= _MOST_VALUES:
            column.counts.update(dict(zip(distinct.to_pylist(), numbers.tolist(), strict=True)))
        if len(distinct) > _MOST_VALUES or len(column.counts) > _MOST_VALUES:
            column.counts = None
    return distinct, numbers


def _texts(column: Column, texts: pa.Array, counts: NDArray[np.int64]) -> None:
    trimmed = pc.utf8_trim_whitespace(texts)
    seen = column.num_present - int(counts.sum())  # before this batch
    if column.num_numbers >= 0.5 * seen:
        is_number = pc.match_substring_regex(trimmed, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
        mask = is_number.to_numpy(zero_copy_only=False)
        numbers = trimmed.filter(is_number)
        if len(numbers):
            column.has_zeros = column.has_zeros or bool(pc.any(pc.match_substring_regex(numbers, r"^-?0\d")).as_py())
            _numbers(column, numbers.cast(pa.float64()), counts[mask])
        odd = trimmed.filter(pc.invert(is_number))
        if len(column.misfits) <= 2 * len(NULL_WORDS):
            first = zip(odd.slice(0, 50).to_pylist(), counts[~mask][:50].tolist(), strict=True)
            column.misfits.update(dict(first))
    column.words += [int(counts.sum()), int((_num_words(trimmed) * counts).sum())]
    for form, known in column.formats.items():
        if known >= 0.01 * seen:
            times = _times_of(trimmed, form)
            column.formats[form] = known + int(counts[times.is_valid().to_numpy(zero_copy_only=False)].sum())
            found = pc.min_max(times).as_py()
            low, high = column.spans.get(form, (float("inf"), float("-inf")))
            if found["min"] is not None:
                column.spans[form] = (min(low, found["min"]), max(high, found["max"]))
    for sign in column.separators:
        has_sign = pc.match_substring(texts, sign).to_numpy(zero_copy_only=False)
        column.separators[sign] += int(counts[has_sign].sum())


def _num_words(texts: pa.Array) -> NDArray[np.int64]:
    words: NDArray[np.int64] = 1 + pc.count_substring_regex(texts, r"\s+").to_numpy().astype(np.int64)
    return words


def _times_of(texts: pa.Array, form: str) -> pa.Array:
    """Texts of a format as microseconds, null where they are none; few are looked at where the first are none."""
    few = texts.slice(0, 200)
    if len(texts) > len(few) and not pc.any(_parsed(few, form).is_valid()).as_py():
        return pa.nulls(len(texts), pa.int64())
    return _parsed(texts, form)


def _parsed(texts: pa.Array, form: str) -> pa.Array:
    if form == "iso":
        return iso_times(texts)
    return pc.strptime(texts, format=form, unit="us", error_is_null=True).cast(pa.int64())


def _numbers(column: Column, values: pa.Array, counts: NDArray[np.int64]) -> None:
    numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    finite = np.isfinite(numbers)
    numbers, counts = numbers[finite], counts[finite]
    if not len(numbers):
        return
    column.num_numbers += int(counts.sum())
    column.lowest, column.highest = min(column.lowest, numbers.min()), max(column.highest, numbers.max())
    column.is_whole = column.is_whole and bool((numbers == np.floor(numbers)).all())
    with np.errstate(over="ignore"):
        column.sums = column.sums + [np.sum(counts * numbers**power) for power in range(4)]


def _times(column: Column, micros: pa.Array, counts: NDArray[np.int64]) -> None:
    numbers = micros.to_numpy()
    column.num_numbers += int(counts.sum())
    column.lowest, column.highest = min(column.lowest, numbers.min()), max(column.highest, numbers.max())
    column.is_date = column.is_date and bool((numbers % 86_400_000_000 == 0).all())


def are_booleans(values: Iterable[Any]) -> bool:
    """Whether texts are words for true and false, not numbers."""
    words = {str(value).strip().lower() for value in values}
    return bool(words & {"true", "false", "yes", "no", "t", "f", "y", "n"}) and words <= {*TRUE, *FALSE}
