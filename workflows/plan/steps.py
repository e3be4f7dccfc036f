"""The steps that a plan runs for each request. Each step processes whole columns with a few NumPy calls.

`rankline.workflows.compiler.operators` composes NVTabular's operators from these steps, and also runs the steps on
tables to fold them. Arithmetic uses NumPy on the column's dtype, in NVTabular's order, so that floats are identical to
the bit. Constants are Python numbers, which do not change a column's dtype in any NumPy version.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankline.workflows.core.errors import UnfitError
from rankline.workflows.nvt.dates import date_part
from rankline.workflows.nvt.keys import bucket_of_many, hash_values, numbers_of_hex
from rankline.workflows.plan.columns import (
    AnyColumn,
    Lists,
    Vector,
    is_float,
    is_missing,
    is_string,
    mask_of,
    take,
    take_or_missing,
    with_one_more,
)
from rankline.workflows.schema.ragged import offsets_of

FUNCTIONS: dict[str, Any] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.true_divide,
    "remainder": np.remainder,
    "log": np.log,
}


class Step:
    """Base class of steps, which compute one column from one or more input columns. An `elementwise` step treats list
    elements as single values.
    """

    elementwise: ClassVar[bool] = True

    def run(self, *columns: AnyColumn) -> AnyColumn:
        first = columns[0]
        if self.elementwise and isinstance(first, Lists):
            return first._replace(elements=self._compute(*(column.elements for column in columns)))  # type: ignore[union-attr]
        column: AnyColumn = self._compute(*columns)
        return column

    def _compute(self, *columns: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Take(Step):
    table: AnyColumn

    def _compute(self, rows: Vector) -> AnyColumn:
        column: AnyColumn = take(self.table, rows.values)
        return column


@dataclass(frozen=True, kw_only=True)
class Cast(Step):
    """Casts numbers to another dtype; missing values stay missing."""

    dtype: str

    def _compute(self, column: Vector) -> Vector:
        dtype = np.dtype(self.dtype)
        if dtype.kind == "f":
            return Vector(numbers_of(column).astype(dtype, copy=False))
        if is_float(column):
            missing = is_missing(column)
            return Vector(np.where(missing, 0, column.values).astype(dtype), mask_of(~missing))
        return Vector(column.values.astype(dtype, copy=False), column.valid)


@dataclass(frozen=True, kw_only=True)
class Narrow(Step):
    """Casts integers to a smaller dtype; raises `UnfitError` if a value does not fit."""

    column: str  # column name for the error message
    dtype: str  # NumPy dtype name

    def _compute(self, column: Vector) -> Vector:
        narrow = column.values.astype(self.dtype)
        is_changed = narrow != column.values
        if column.valid is not None:
            is_changed &= column.valid
        if is_changed.any():
            value = int(column.values[is_changed][0])
            raise UnfitError(f"column {self.column!r} contains {value}, which is out of range for {self.dtype}.")
        return column._replace(values=narrow)


@dataclass(frozen=True, kw_only=True)
class HexToInt(Step):
    """Parses hexadecimal strings as float64; invalid strings become missing."""

    def _compute(self, column: Vector) -> Vector:
        numbers = numbers_of_hex(column.values)
        return Vector(numbers if column.valid is None else np.where(column.valid, numbers, np.nan))


@dataclass(frozen=True, kw_only=True)
class Finite(Step):
    """A step that replaces infinities and floats too large for float32 with NaN."""

    def _compute(self, column: Vector) -> Vector:
        values: Any = column.values
        return Vector(np.where(np.isfinite(values.astype(np.float32)), values, values.dtype.type(np.nan)))


@dataclass(frozen=True, kw_only=True)
class DatePart(Step):
    """A step that extracts a date or time part as float64 from microseconds since 1970. Missing values stay missing."""

    part: str

    def _compute(self, column: Vector) -> Vector:
        missing = is_missing(column)
        if not missing.any():
            return Vector(date_part(column.values.astype(np.int64), self.part))
        micros = np.where(missing, 0, column.values).astype(np.int64)
        return Vector(np.where(missing, np.nan, date_part(micros, self.part)))


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Step):
    """Applies a NumPy function to one or two columns, or to a column and a number; missing integers count as NaN."""

    function: str
    operand: int | float | None = None

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise ValueError(f"function {self.function!r} is not one of {sorted(FUNCTIONS)}")

    def _compute(self, *columns: Vector) -> Vector:
        operands = [*map(numbers_of, columns), *([] if self.operand is None else [self.operand])]
        return Vector(FUNCTIONS[self.function](*operands))


@dataclass(frozen=True, kw_only=True)
class Fill(Step):
    value: int | float | bool | str

    def _compute(self, column: Vector) -> Vector:
        if is_string(column):
            if column.valid is None:
                return column
            return Vector(pc.if_else(pa.array(column.valid), column.values, pa.scalar(self.value, pa.large_binary())))
        if column.valid is None and not is_float(column):
            return column
        return Vector(np.where(is_missing(column), column.values.dtype.type(self.value), column.values))


@dataclass(frozen=True, kw_only=True)
class IsMissing(Step):
    def _compute(self, column: Vector) -> Vector:
        return Vector(is_missing(column))


@dataclass(frozen=True, kw_only=True)
class Clip(Step):
    """A step that clips numbers to the range from `lowest` to `highest` and leaves NaN unchanged."""

    lowest: int | float | None
    highest: int | float | None

    def _compute(self, column: Vector) -> Vector:
        values = column.values.copy()
        if self.lowest is not None:
            values[values < self.lowest] = self.lowest
        if self.highest is not None:
            values[values > self.highest] = self.highest
        return column._replace(values=values)


@dataclass(frozen=True, kw_only=True)
class Digitize(Step):
    """A step that returns each value's int32 bin number. A boundary belongs to the bin above it, NaN to the top."""

    boundaries: NDArray[Any]
    descending: bool

    def _compute(self, column: Vector) -> Vector:
        bins = np.searchsorted(self.boundaries, numbers_of(column), side="right")
        return Vector((len(self.boundaries) - bins if self.descending else bins).astype(np.int32))


@dataclass(frozen=True, kw_only=True)
class Combine(Step):
    """A step that combines row numbers from several indexes into one int64 key, using `sizes` as a mixed radix."""

    sizes: tuple[int, ...]

    def _compute(self, *columns: Vector) -> Vector:
        key = columns[0].values
        for size, rows in zip(self.sizes[1:], columns[1:], strict=True):
            key = key * size + rows.values
        return Vector(key)


@dataclass(frozen=True, kw_only=True)
class Bucket(Step):
    """Hashes one column's values, or the combined values of several, to int32 buckets. Missing values hash to 0."""

    num_buckets: int

    def _compute(self, *columns: Vector) -> Vector:
        hashes = [np.where(is_missing(column), np.uint64(0), hash_values(column.values)) for column in columns]
        return Vector(bucket_of_many(hashes, self.num_buckets).astype(np.int32))


@dataclass(frozen=True, kw_only=True)
class Slice(Step):
    """Slices each list with Python's slice semantics."""

    elementwise: ClassVar[bool] = False

    start: int  # first position; negative values count from the end
    end: int  # position after the last; negative values count from the end
    width: int | None  # upper bound of the slice lengths, if known

    def _compute(self, lists: Lists) -> Lists:
        lengths = np.diff(lists.offsets)
        begin, stop = (
            np.clip(lengths + position if position < 0 else position, 0, lengths) for position in (self.start, self.end)
        )
        kept = np.maximum(stop - begin, 0)
        offsets = offsets_of(kept)
        elements = np.repeat(lists.offsets[:-1] + begin - offsets[:-1], kept) + np.arange(offsets[-1])
        return Lists(take(lists.elements, elements), offsets, lists.valid, self.width)


@dataclass(frozen=True, kw_only=True)
class Pad(Step):
    """Pads lists to `width` with `value` at the end; missing lists stay missing."""

    elementwise: ClassVar[bool] = False

    width: int
    value: int | float | str

    def _compute(self, lists: Lists) -> Lists:
        lengths = np.diff(lists.offsets)
        offsets = offsets_of(np.where(is_missing(lists), 0, np.maximum(lengths, self.width)))
        count = int(lists.offsets[-1])
        source = np.full(offsets[-1], count)
        source[np.repeat(offsets[:-1] - lists.offsets[:-1], lengths) + np.arange(count)] = np.arange(count)
        return Lists(take(with_one_more(lists.elements, self.value), source), offsets, lists.valid, lists.width)


@dataclass(frozen=True, kw_only=True)
class Limit(Step):
    """A step that sets the fixed list width a model expects and raises `UnfitError` for longer lists."""

    elementwise: ClassVar[bool] = False

    column: str  # column name for the error message
    width: int  # maximum list length

    def _compute(self, lists: Lists) -> Lists:
        if (longest := int(np.diff(lists.offsets).max(initial=0))) > self.width:
            raise UnfitError(f"column {self.column!r} has a list of {longest} values, expected at most {self.width}.")
        return lists._replace(width=self.width)


@dataclass(frozen=True, kw_only=True)
class Element(Step):
    """A step that extracts one element of each list, or a missing value if the list is empty."""

    elementwise: ClassVar[bool] = False

    column: str  # column name for the error message
    place: int  # position of the element in the list
    length: int  # required length of all lists that are not empty

    def _compute(self, lists: Lists) -> Vector:
        lengths = np.diff(lists.offsets)
        odd = lengths[(lengths != 0) & (lengths != self.length)]
        if len(odd):
            raise UnfitError(f"column {self.column!r} has a list of {odd[0]} values, expected {self.length}.")
        made: Vector = take_or_missing(lists.elements, np.where(lengths > 0, lists.offsets[:-1] + self.place, -1))
        return made


@dataclass(frozen=True, kw_only=True)
class SameLengths(Step):
    """A step that fits lists to the lengths of another column: it keeps the latest elements or adds leading zeros."""

    elementwise: ClassVar[bool] = False

    def _compute(self, lists: Lists, like: Lists) -> Lists:
        lengths = np.diff(like.offsets)
        if np.array_equal(np.diff(lists.offsets), lengths):
            return lists._replace(width=like.width)
        offsets = offsets_of(lengths)
        source = np.repeat(lists.offsets[1:] - offsets[1:], lengths) + np.arange(offsets[-1])
        source[source < np.repeat(lists.offsets[:-1], lengths)] = lists.offsets[-1]
        return Lists(take(with_one_more(lists.elements, 0), source), offsets, lists.valid, like.width)


@dataclass(frozen=True, kw_only=True)
class NullToEmpty(Step):
    elementwise: ClassVar[bool] = False

    def _compute(self, lists: Lists) -> Lists:
        return lists._replace(valid=None)


@dataclass(frozen=True, kw_only=True)
class WithoutEmpty(Step):
    """Marks empty strings as missing, and removes empty and missing strings from lists."""

    elementwise: ClassVar[bool] = False

    def _compute(self, column: AnyColumn) -> AnyColumn:
        strings = column.elements if isinstance(column, Lists) else column
        kept = pc.greater(pc.binary_length(strings.values), 0).to_numpy(zero_copy_only=False) & ~is_missing(strings)
        if kept.all():
            return column
        if isinstance(column, Vector):
            return Vector(column.values, kept)
        offsets = offsets_of(kept)[column.offsets]
        return column._replace(elements=take(strings, np.flatnonzero(kept)), offsets=offsets)


def fitting(name: str, made: np.dtype[Any], dtype: str | None, width: int | None) -> Iterator[Step]:
    """Yield the steps that convert a column to `dtype` and to the fixed list width `width`. None means no conversion.

    The steps reject integers and lists that are too large.
    """
    if width is not None:
        yield Limit(column=name, width=width)
    if dtype is None or made == dtype:
        return
    if made.kind in "iu" and np.dtype(dtype).kind in "iub" and not np.can_cast(made, dtype):
        yield Narrow(column=name, dtype=dtype)
    else:
        yield Cast(dtype=dtype)


def numbers_of(column: Vector) -> NDArray[Any]:
    """Return a column's values for arithmetic. Integers with missing values become float64 with NaN, as in pandas."""
    values: NDArray[Any] = column.values
    return values if column.valid is None else np.where(column.valid, values.astype(np.float64), np.nan)


STEPS: tuple[type[Step], ...] = tuple(Step.__subclasses__())
"""The classes above."""
