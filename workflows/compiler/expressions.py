"""Column expressions used during compilation, which become plan steps or are folded into tables.

A column is a raw `Input`, `Computed` from other columns by a step, or a `Lookup` of table rows found per request. A
step on columns that are looked up at the same rows is applied once, to their tables, at compile time. Joins, list
encodings and arithmetic on joined columns therefore take no time per request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from rankline.workflows.core.errors import LoweringError
from rankline.workflows.nvt.compat import nvt
from rankline.workflows.plan import ColumnSpec, KeyIndex
from rankline.workflows.plan.columns import (
    AnyColumn,
    Lists,
    Vector,
    from_arrow,
    is_missing,
    is_string,
    lists_of,
    take,
    take_or_missing,
    vector_of,
)
from rankline.workflows.plan.steps import Cast, Combine, Step, Take, WithoutEmpty


@dataclass(frozen=True, eq=False)
class Expression:
    @cached_property
    def example(self) -> AnyColumn:
        """The column evaluated on zero rows, which reveals its dtype and whether it contains lists."""
        raise NotImplementedError

    @property
    def is_list(self) -> bool:
        return isinstance(self.example, Lists)

    @property
    def elements(self) -> Vector:
        """The values of `example`, or its flattened elements if it contains lists."""
        return self.example.elements if isinstance(self.example, Lists) else self.example

    @property
    def is_string(self) -> bool:
        return is_string(self.elements)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(object) if self.is_string else self.elements.values.dtype


@dataclass(frozen=True, eq=False)
class Input(Expression):
    spec: ColumnSpec

    @cached_property
    def example(self) -> AnyColumn:
        zeros = self.spec.zeros(0)
        return vector_of(zeros) if isinstance(zeros, np.ndarray) else lists_of(zeros)


@dataclass(frozen=True, eq=False)
class Computed(Expression):
    step: Step | KeyIndex
    inputs: tuple[Expression, ...]

    @cached_property
    def example(self) -> AnyColumn:
        return self.step.run(*(column.example for column in self.inputs))


@dataclass(frozen=True, eq=False)
class Lookup(Expression):
    """A column looked up in `table` at the row numbers in `rows`. Lists of row numbers yield lists."""

    rows: Expression
    table: AnyColumn

    @cached_property
    def example(self) -> AnyColumn:
        return Take(table=self.table).run(self.rows.example)

    @cached_property
    def taken(self) -> Computed:
        """The lookup as a computed column, which steps can read."""
        return Computed(Take(table=self.table), (self.rows,))


Columns: TypeAlias = Mapping[str, Expression]
Lowering: TypeAlias = Callable[[Any, nvt.ColumnSelector, Columns], Columns]
"""Operator, selected columns with their groups, and expressions of the input columns → output columns."""


def apply(step: Step, *columns: Expression) -> Expression:
    """Apply a step to columns, or directly to the underlying tables if all columns are lookups of the same rows."""
    lookups = [column for column in columns if isinstance(column, Lookup)]
    if len(lookups) == len(columns) and len({id(column.rows) for column in lookups}) == 1:
        rows = lookups[0].rows
        if step.elementwise or not rows.is_list:
            with np.errstate(all="ignore"):
                return Lookup(rows, step.run(*(column.table for column in lookups)))
    return Computed(step, tuple(column.taken if isinstance(column, Lookup) else column for column in columns))


def cast(column: Expression, dtype: Any) -> Expression:
    name = np.dtype(dtype).name
    return column if column.dtype == name else apply(Cast(dtype=name), column)


@dataclass(frozen=True)
class KeyMatch:
    """The table rows that match the keys in a request."""

    rows: Expression  # table row for each request row
    positions: NDArray[np.int64]  # position of the key of each table row; negative for unknown and missing keys
    missing_row: int  # the table row of missing keys

    def look_up(self, column: AnyColumn) -> Lookup:
        """Look up a column aligned with the keys. Unknown keys yield missing values."""
        return self.look_up_table(take_or_missing(column, self.positions))

    def look_up_table(self, table: AnyColumn) -> Lookup:
        """Return a lookup in `table`, a column with one entry per table row, also for unknown and missing keys."""
        if isinstance(self.rows, Lookup):
            return Lookup(self.rows.rows, Take(table=table).run(self.rows.table))
        return Lookup(self.rows, table)


def find(columns: Sequence[Expression], keys: Sequence[Vector], *, what: str, num_unknown: int = 1) -> KeyMatch:
    """Match the values of one or more columns against the known `keys`. A list column must be the only column.

    Missing equals missing, as in a pandas merge. Numbers of different dtypes are equal if their values are. More than
    one table row for unknown keys is possible for a single column only.

    Raises:
        LoweringError: types differ, or keys are not unique; the message names `what`.
    """
    if len(columns) == 1:
        return _find_in_one(columns[0], keys[0], what, num_unknown)
    sizes, digits, known = [], [], []
    for column, part in zip(columns, keys, strict=True):
        distinct = _distinct(part)
        found = _find_in_one(column, distinct, what, 1)
        index = KeyIndex.build(0, _present(distinct), 1, found.missing_row)
        sizes.append(len(found.positions))
        digits.append(found.rows)
        known.append(Vector(index.rows_of(*part)))
    if np.prod([float(size) for size in sizes]) >= 2.0**63:
        raise LoweringError(
            f"{what}: columns with {sizes} distinct values have too many combinations. Use fewer columns."
        )
    combine = Combine(sizes=tuple(sizes))
    together = Vector(combine.run(*known).values)  # type: ignore[union-attr]
    return _find_in_one(apply(combine, *digits), together, what, 1)


def _find_in_one(column: Expression, keys: Vector, what: str, num_unknown: int) -> KeyMatch:
    if column.is_string != is_string(keys):
        kind = "strings" if is_string(keys) else keys.values.dtype.name
        remedy = "Use the same type for both"
        if column.is_list:
            remedy = "NVTabular takes the type of lists from the first row: fit again to rows that begin with values"
        raise LoweringError(f"{what}: the column is {column.dtype}, but the known keys are {kind}. {remedy}.")
    if not is_string(keys):
        common = np.result_type(column.dtype, keys.values.dtype)
        column, keys = cast(column, common), Cast(dtype=common.name).run(keys)  # type: ignore[assignment]
    missing = is_missing(keys)
    present = _present(keys)
    if len(_distinct(keys).values) != len(keys.values):
        raise LoweringError(
            f"{what}: the keys are not unique, so one request row could become several. Remove the duplicate keys."
        )
    missing_row = num_unknown + len(present)
    if isinstance(column, Computed) and isinstance(column.step, WithoutEmpty) and not column.is_list:
        (column,) = column.inputs  # saves the step: the index maps an empty string to the missing row
        present = pa.concat_arrays([present, pa.array([b""], pa.large_binary())])
    positions = np.full(missing_row + 1, -1)
    positions[num_unknown:missing_row] = np.flatnonzero(~missing)
    positions[missing_row:] = np.flatnonzero(missing) if missing.any() else -1
    index = KeyIndex.build(0, present, num_unknown, missing_row)
    rows: Expression = Computed(index, (column,))
    if isinstance(column, Lookup):
        rows = Lookup(column.rows, index.run(column.table))
    return KeyMatch(rows, positions, missing_row)


def _present(keys: Vector) -> Any:
    return take(keys, np.flatnonzero(~is_missing(keys))).values


def _distinct(keys: Vector) -> Any:
    values: Any = keys.values
    missing = is_missing(keys)
    series = pd.Series(values.to_numpy(zero_copy_only=False) if is_string(keys) else values)
    first = np.zeros(len(series), dtype=bool)
    first[~missing] = ~series[~missing].duplicated().to_numpy()
    first[np.flatnonzero(missing)[:1]] = True
    return take(keys, np.flatnonzero(first))


def column_of(series: "pd.Series[Any]") -> AnyColumn:
    try:
        column: AnyColumn = from_arrow(pa.array(series, from_pandas=True))
    except (ValueError, pa.ArrowException) as error:
        raise LoweringError(
            f"column {series.name!r} cannot be compiled: {error}. Convert it to numbers or strings."
        ) from None
    return column


def check_numbers(op: Any, name: str, column: Expression, *, lists: bool = False) -> None:
    if column.is_string or (column.is_list and not lists):
        held = "lists" if column.is_list else "strings"
        raise LoweringError(f"{type(op).__name__} on {name!r}: the column contains {held}, expected numbers.")


def unsupported(op: Any, options: str, remedy: str) -> LoweringError:
    return LoweringError(f"{type(op).__name__}({options}) {remedy}")
