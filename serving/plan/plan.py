"""The plan: what comes in, what is found and computed, what goes out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from serving.plan.columns import AnyColumn, Lists, Vector, lists_of, padded_of, vector_of
from serving.plan.index import KeyIndex
from serving.plan.stacks import STACKED_STEPS, Stack
from serving.plan.steps import STEPS, Step
from serving.plan.storage import ArrayWriter, decode, encode
from workflows.errors import ArtifactError, RequestError, in_short
from workflows.lists import Padded
from workflows.regular_files import read_regular
from workflows.tensor_names import MISSING_LIST, NNZS, VALID, VALUES
from workflows.tensors import Tensor, fill_value

PLAN_FILE = "plan.json"
FORMAT_VERSION = 3
_MOST_BYTES = 8 << 20  # of `plan.json`; a step takes a few hundred, its arrays are in files of their own
ANY_WIDTH = -1
"""Width of lists that are as wide as the longest of a batch."""

Inputs: TypeAlias = Mapping[str, NDArray[Any] | pa.LargeBinaryArray | Padded]
Reference: TypeAlias = str | int
"""A raw column by name, or an earlier result: results are numbered over `indexes`, then `steps`."""


@dataclass(frozen=True, kw_only=True)
class ColumnSpec:
    """One column that goes in or comes out.

    Attributes:
        name: column name.
        dtype: NumPy dtype name of a single value; "object" for strings, which are `bytes` (UTF-8) or `str`.
        width: None for one value per row; else the columns of the zero-padded list, `ANY_WIDTH` where it varies.
    """

    name: str
    dtype: str
    width: int | None = None

    def __post_init__(self) -> None:
        _ = self.numpy_dtype  # a name of none is refused here

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Of a single value."""
        return np.dtype(self.dtype)

    @property
    def has_mask(self) -> bool:
        """A request says by a mask what is missing: floats have NaN for that, lists their lengths."""
        return self.width is None and self.numpy_dtype.kind != "f"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What carries it on the wire."""
        if self.width is None:
            return (Tensor(name=self.name, dtype=self.dtype),)
        values = Tensor(name=self.name + VALUES, dtype=self.dtype, dims=(self.width,))
        return values, Tensor(name=self.name + NNZS, dtype="int32")

    @property
    def mask(self) -> Tensor | None:
        """What says which values of a request are there, for columns that cannot say it themselves."""
        return Tensor(name=self.name + VALID, dtype="bool", optional=True) if self.has_mask else None

    def zeros(self, num_rows: int) -> NDArray[Any] | Padded:
        """Rows of zeros, empty strings or empty lists."""
        values = np.full(num_rows, fill_value(self.numpy_dtype), self.numpy_dtype)
        if self.width is None:
            return values
        return Padded(values[:, None], np.zeros(num_rows, dtype=np.int32))

    def missing(self, num_rows: int) -> dict[str, NDArray[Any]]:
        """Tensors of rows that lack a value, as a request says it."""
        empty = self.zeros(num_rows)
        if isinstance(empty, Padded):
            lengths = np.full((num_rows, 1), MISSING_LIST, np.int32)
            return {self.name + VALUES: empty.values, self.name + NNZS: lengths}
        if self.mask is None:
            return {self.name: np.full((num_rows, 1), np.nan, self.numpy_dtype)}
        return {self.name: empty.reshape(-1, 1), self.mask.name: np.zeros((num_rows, 1), np.bool_)}


@dataclass(frozen=True, kw_only=True)
class StepCall:
    """A step on some columns.

    Attributes:
        step: what is computed.
        inputs: of what.
    """

    step: Step
    inputs: tuple[Reference, ...]

    def run(self, *columns: AnyColumn) -> AnyColumn:
        """Compute a column of as many rows."""
        return self.step.run(*columns)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One output column that is looked up.

    Attributes:
        name: column name.
        index: number of the result that holds the table rows, an index mostly.
        values: [num_table_rows] for single values, [num_table_rows, width] for padded lists.
        lengths: int32 [num_table_rows] for lists, else None.
        width: of the lists, where the result holds lists of rows.
    """

    name: str
    index: int
    values: NDArray[Any]
    lengths: NDArray[np.int32] | None = None
    width: int | None = None

    @property
    def spec(self) -> ColumnSpec:
        """Name, dtype and width."""
        width = self.width if self.lengths is None else int(self.values.shape[1])
        return ColumnSpec(name=self.name, dtype=self.values.dtype.name, width=width)

    def read(self, _inputs: Mapping[str, AnyColumn], results: list[AnyColumn]) -> NDArray[Any] | Padded:
        """The values at the rows that were found."""
        rows = results[self.index]
        if isinstance(rows, Lists):
            elements = Vector(self.values.take(rows.elements.values))
            return _finished(self.name, rows._replace(elements=elements))
        values = self.values.take(rows.values, axis=0)
        return values if self.lengths is None else Padded(values, self.lengths.take(rows.values))


@dataclass(frozen=True, kw_only=True)
class Computed:
    """One output column that is a raw column or a step's result.

    Attributes:
        name: column name.
        source: where it is.
        dtype: NumPy dtype name of a single value.
        width: of lists, None for single values.
    """

    name: str
    source: Reference
    dtype: str
    width: int | None = None

    @property
    def spec(self) -> ColumnSpec:
        """Name, dtype and width."""
        return ColumnSpec(name=self.name, dtype=self.dtype, width=self.width)

    def read(self, inputs: Mapping[str, AnyColumn], results: list[AnyColumn]) -> NDArray[Any] | Padded:
        """The values that were computed."""
        return _finished(self.name, inputs[self.source] if isinstance(self.source, str) else results[self.source])


@dataclass(frozen=True, kw_only=True)
class StackedColumn:
    """One output column that is a row of a stack.

    Attributes:
        name: column name.
        stack: number of the stack.
        row: which of its columns.
        dtype: NumPy dtype name.
    """

    name: str
    stack: int
    row: int
    dtype: str

    @property
    def spec(self) -> ColumnSpec:
        """Name, dtype and width."""
        return ColumnSpec(name=self.name, dtype=self.dtype)

    def read(self, stacks: list[Vector]) -> NDArray[Any]:
        """The values that were computed."""
        values, valid = stacks[self.stack]
        if valid is not None:
            _refuse_missing(self.name, valid[self.row])
        column: NDArray[Any] = values[self.row]
        return column


class TransformColumn(Protocol):
    """A column that a transform makes."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def spec(self) -> ColumnSpec:
        """Name, dtype and width."""


class Transform(Protocol):
    """What makes of raw rows what a model takes: a `TransformPlan`, or what stands in its place."""

    @property
    def inputs(self) -> tuple[ColumnSpec, ...]:
        """Raw columns of a request."""

    @property
    def columns(self) -> Sequence[TransformColumn]:
        """What it makes."""

    def run(
        self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> dict[str, NDArray[Any] | Padded]:
        """Transform raw rows; see `TransformPlan.run`."""

    def save(self, directory: Path) -> None:
        """Write it into a new directory."""


@dataclass(frozen=True, kw_only=True)
class TransformPlan:
    """The transform of one serving graph.

    Attributes:
        inputs: raw columns of a request.
        indexes: the indexes on raw columns.
        columns: the output columns, in the workflow's order.
        steps: what is computed of raw columns and earlier results, in order; an index of computed keys is one.
        stacks: what is computed of several raw columns together.
    """

    inputs: tuple[ColumnSpec, ...]
    indexes: tuple[KeyIndex, ...]
    columns: tuple[Column | Computed | StackedColumn, ...]
    steps: tuple[StepCall | KeyIndex, ...] = ()
    stacks: tuple[Stack, ...] = ()

    def __post_init__(self) -> None:
        names = {spec.name for spec in self.inputs}
        for made, call in enumerate((*self.indexes, *self.steps)):
            _check_references(call.inputs, names, made)
        made = len(self.indexes) + len(self.steps)
        for stack in self.stacks:
            _check_references(stack.inputs, names, 0)
        for column in self.columns:
            if isinstance(column, StackedColumn):
                _check_references((column.stack,), set(), len(self.stacks))
            else:
                _check_references((column.index if isinstance(column, Column) else column.source,), names, made)

    def _check_rows(self) -> None:
        """Every row that an index leads to is in the column's table, as a file may say otherwise.

        Raises:
            ValueError: one is not.
        """
        results = (*self.indexes, *self.steps)
        for column in self.columns:
            if isinstance(column, Column) and isinstance(index := results[column.index], KeyIndex):
                first, last = index.row_bounds
                length = min(len(column.values), len(column.values if column.lengths is None else column.lengths))
                if first < 0 or last >= length:
                    raise ValueError(f"an index leads to rows {first} to {last} of {length} of column {column.name!r}")

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.inputs)

    @cached_property
    def _alone(self) -> tuple[ColumnSpec, ...]:
        """Raw columns that an index, a step or an output reads by themselves."""
        read = {name for call in (*self.indexes, *self.steps) for name in call.inputs}
        read |= {column.source for column in self.columns if isinstance(column, Computed)}
        return tuple(spec for spec in self.inputs if spec.name in read)

    def run(
        self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> dict[str, NDArray[Any] | Padded]:
        """Transform raw rows.

        Args:
            inputs: column → array of [num_rows], of the dtype in `inputs`; strings may be Arrow's; `Padded` for lists.
            valid: column → bool [num_rows], False where a value, or a whole list, is missing. Columns without a mask
                are all there, but for NaN in floats, None in strings and lists of `MISSING_LIST` values, which are
                missing in any case.

        Returns:
            Column → array of [num_rows], or `Padded` for lists. Zero rows give zero rows.

        Raises:
            RequestError: an input is missing, has another dtype, the inputs differ in length, or a value is missing
                where the workflow does not expect it.
        """
        valid = valid or {}
        self._check(inputs, valid)
        columns = {spec.name: column_of(spec, inputs[spec.name], valid.get(spec.name)) for spec in self._alone}
        results: list[AnyColumn] = [index.run(columns[index.input]) for index in self.indexes]  # type: ignore[index]
        stacks: list[Vector] = []
        if self.steps or self.stacks:
            with np.errstate(all="ignore"):  # the logarithm of a negative number is NaN, as in NVTabular
                stacks.extend(self._run(stack, inputs, valid) for stack in self.stacks)
                for call in self.steps:
                    results.append(call.run(*(columns[n] if isinstance(n, str) else results[n] for n in call.inputs)))
        return {
            column.name: column.read(stacks) if isinstance(column, StackedColumn) else column.read(columns, results)
            for column in self.columns
        }

    def _run(self, stack: Stack, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]]) -> Vector:
        try:
            return stack.run(inputs, valid)  # type: ignore[arg-type]  # checked: no lists
        except (pa.ArrowException, TypeError):
            for spec in self.inputs:  # one of them has a non-string value, and its error says so
                if spec.name in stack.inputs:
                    column_of(spec, inputs[spec.name], None)
            raise

    def _check(self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]]) -> None:
        lengths = set()
        for spec in self.inputs:
            given = inputs.get(spec.name)
            if given is None:
                raise RequestError(f"input {spec.name!r} is missing. Expected: {[s.name for s in self.inputs]}.")
            lengths.add(_checked_length(spec, given))
        if len(lengths) > 1:
            by_name = {spec.name: _checked_length(spec, inputs[spec.name]) for spec in self.inputs}
            raise RequestError(f"inputs have different numbers of rows: {by_name}. Give the same number for each.")
        if unknown := valid.keys() - self._names:
            raise RequestError(f"valid names {sorted(unknown)}, which are no inputs. Available: {sorted(self._names)}.")
        for name, mask in valid.items():
            if mask.dtype != np.bool_ or mask.ndim != 1 or len(mask) not in lengths:
                raise RequestError(f"valid of {name!r} is {mask.dtype} {list(mask.shape)}, expected bool {[*lengths]}.")

    def save(self, directory: Path) -> None:
        """Write the plan into a new directory."""
        directory.mkdir(parents=True)
        writer = ArrayWriter(directory)
        document = {
            "format_version": FORMAT_VERSION,
            "inputs": [encode(spec, writer) for spec in self.inputs],
            "indexes": [encode(index, writer) for index in self.indexes],
            "steps": [encode(step, writer) for step in self.steps],
            "stacks": [encode(stack, writer) for stack in self.stacks],
            "columns": [encode(column, writer) for column in self.columns],
        }
        (directory / PLAN_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> "TransformPlan":
        """Map a plan into memory.

        Raises:
            ArtifactError: missing or damaged.
        """
        path = directory / PLAN_FILE
        try:
            document = json.loads(read_regular(path, _MOST_BYTES))
            if document["format_version"] != FORMAT_VERSION:
                raise ArtifactError(
                    f"{path} has format version {document['format_version']!r:.50}, expected {FORMAT_VERSION}. "
                    "Export again."
                )
            parts = {
                name: tuple(decode(entry, _KINDS, directory) for entry in document[name])
                for name in ("inputs", "indexes", "steps", "stacks", "columns")
            }
            plan = cls(**parts)
            plan._check_rows()
            return plan
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            pa.ArrowException,
            RecursionError,
            OverflowError,
        ) as error:
            raise ArtifactError(
                f"{path} cannot be read ({type(error).__name__}: {in_short(error)}). Export again."
            ) from None


_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        ColumnSpec, KeyIndex, StepCall, Stack, Column, Computed, StackedColumn, Vector, Lists, *STEPS, *STACKED_STEPS,
    )
}  # fmt: skip
_KINDS["TensorSpec"] = ColumnSpec  # in plans of version 0.1


def _check_references(references: tuple[Reference, ...], names: set[str], num_made: int) -> None:
    for reference in references:
        if reference not in names if isinstance(reference, str) else not 0 <= reference < num_made:
            raise ValueError(f"{reference!r} is neither one of the inputs {sorted(names)} nor an earlier result")


def _checked_length(spec: ColumnSpec, given: NDArray[Any] | pa.LargeBinaryArray | Padded) -> int:
    """Rows of a raw column of the right shape and dtype."""
    is_list = spec.width is not None
    if isinstance(given, pa.LargeBinaryArray) and spec.dtype == "object" and not is_list:
        return len(given)
    if isinstance(given, Padded) != is_list:
        wanted = "padded lists" if is_list else "one value per row"
        raise RequestError(f"input {spec.name!r} is {type(given).__name__}, expected {wanted}.")
    values: Any = given.values if is_list else given  # type: ignore[union-attr]  # checked
    if values.ndim != 1 + is_list:
        raise RequestError(f"input {spec.name!r} has shape {list(values.shape)}, expected one value or list per row.")
    if values.dtype != spec.numpy_dtype:
        raise RequestError(f"input {spec.name!r} is {values.dtype}, expected {spec.dtype}.")
    return len(values)


def column_of(
    spec: ColumnSpec, given: NDArray[Any] | pa.LargeBinaryArray | Padded, valid: NDArray[np.bool_] | None
) -> AnyColumn:
    """A raw column."""
    if isinstance(given, Padded) and _shortest(spec.name, given) == MISSING_LIST:
        there = given.lengths != MISSING_LIST
        valid = there if valid is None else valid & there
    try:
        return lists_of(given, valid) if isinstance(given, Padded) else vector_of(given, valid)
    except (pa.ArrowException, TypeError) as error:
        raise RequestError(f"input {spec.name!r} contains a non-string value ({error}). Send bytes or str.") from None


def _shortest(name: str, lists: Padded) -> int:
    """The smallest of the lengths, which are checked."""
    num_rows, width = lists.values.shape
    lengths = lists.lengths
    fits = lengths.shape == (num_rows,) and lengths.dtype.kind in "iu"
    shortest = int(lengths.min()) if fits and num_rows else 0
    if not fits or not MISSING_LIST <= shortest <= int(lengths.max(initial=0)) <= width:
        raise RequestError(f"lengths of {name!r} do not fit its values {[num_rows, width]}: {lengths}.")
    return shortest


def _finished(name: str, column: AnyColumn) -> NDArray[Any] | Padded:
    """A computed column as it goes out."""
    elements = column.elements if isinstance(column, Lists) else column
    for part in (column, elements):
        if part.valid is not None:
            _refuse_missing(name, part.valid)
    values: NDArray[Any] = elements.values
    return padded_of(column) if isinstance(column, Lists) else values


def _refuse_missing(name: str, valid: NDArray[np.bool_]) -> None:
    if not valid.all():
        raise RequestError(
            f"column {name!r} is missing, first in row {int(np.argmin(valid))}, and would reach the model. "
            "Send a value, or fill it in the workflow: FillMissing, NullToEmptyList."
        )
