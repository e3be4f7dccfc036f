import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankline.workflows.core.errors import ArtifactError, RequestError, in_short
from rankline.workflows.plan.columns import AnyColumn, Lists, Vector, lists_of, padded_of, vector_of
from rankline.workflows.plan.key_index import KeyIndex
from rankline.workflows.plan.stacks import Stack, StackedArithmetic, StackedBucket, StackedColumn, StackedLookup
from rankline.workflows.plan.steps import STEPS, Step
from rankline.workflows.plan.storage import ArrayWriter, decode, encode
from rankline.workflows.schema.ragged import Padded
from rankline.workflows.schema.tensor_names import MISSING_LIST, NNZS, VALID, VALUES
from rankline.workflows.schema.tensors import Tensor, fill_value
from rankline.workflows.storage.untrusted import read_regular

PLAN_FILE = "plan.json"
FORMAT_VERSION = 3
_MAX_BYTES = 8 << 20  # of `plan.json`; a step takes a few hundred bytes, and its arrays are in separate files
_DAMAGED = OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError, pa.ArrowException
ANY_WIDTH = -1
"""Width of lists that are as wide as the longest list of a batch."""

Inputs: TypeAlias = Mapping[str, NDArray[Any] | pa.LargeBinaryArray | Padded]
Reference: TypeAlias = str | int
"""A raw column by name, or an earlier result by number. Numbers count `indexes` first, then `steps`."""


@dataclass(frozen=True, kw_only=True)
class ColumnSpec:
    name: str
    dtype: str  # NumPy dtype name of a single value; "object" for strings, which are `bytes` (UTF-8) or `str`
    width: int | None = None  # of zero-padded lists, `ANY_WIDTH` if it varies; None for one value per row

    def __post_init__(self) -> None:
        _ = self.numpy_dtype  # raises if there is no such dtype

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    @property
    def has_mask(self) -> bool:
        """Whether requests mark missing values with a mask. Floats use NaN and lists use their lengths instead."""
        return self.width is None and self.numpy_dtype.kind != "f"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that carry the column in requests and responses."""
        if self.width is None:
            return (Tensor(name=self.name, dtype=self.dtype),)
        values = Tensor(name=self.name + VALUES, dtype=self.dtype, dims=(self.width,))
        return values, Tensor(name=self.name + NNZS, dtype="int32")

    @property
    def mask(self) -> Tensor | None:
        return Tensor(name=self.name + VALID, dtype="bool", optional=True) if self.has_mask else None

    def zeros(self, num_rows: int) -> NDArray[Any] | Padded:
        values = np.full(num_rows, fill_value(self.numpy_dtype), self.numpy_dtype)
        if self.width is None:
            return values
        return Padded(values[:, None], np.zeros(num_rows, dtype=np.int32))

    def missing(self, num_rows: int) -> dict[str, NDArray[Any]]:
        """Return request tensors for `num_rows` rows in which this column is missing."""
        empty = self.zeros(num_rows)
        if isinstance(empty, Padded):
            lengths = np.full((num_rows, 1), MISSING_LIST, np.int32)
            return {self.name + VALUES: empty.values, self.name + NNZS: lengths}
        if self.mask is None:
            return {self.name: np.full((num_rows, 1), np.nan, self.numpy_dtype)}
        return {self.name: empty.reshape(-1, 1), self.mask.name: np.zeros((num_rows, 1), np.bool_)}


@dataclass(frozen=True, kw_only=True)
class StepCall:
    step: Step
    inputs: tuple[Reference, ...]

    def run(self, *columns: AnyColumn) -> AnyColumn:
        return self.step.run(*columns)


@dataclass(frozen=True, kw_only=True)
class Column:
    """An output column that is looked up in a table."""

    name: str
    index: int  # number of the result that contains the table rows, usually of an index
    values: NDArray[Any]  # [num_table_rows] for single values, [num_table_rows, width] for padded lists
    lengths: NDArray[np.int32] | None = None  # int32 [num_table_rows] for lists, else None
    width: int | None = None  # width of the lists, if the result contains lists of rows

    @property
    def spec(self) -> ColumnSpec:
        width = self.width if self.lengths is None else int(self.values.shape[1])
        return ColumnSpec(name=self.name, dtype=self.values.dtype.name, width=width)

    @property
    def source(self) -> Reference:
        return self.index

    def read(self, rows: AnyColumn) -> NDArray[Any] | Padded:
        if isinstance(rows, Lists):
            elements = Vector(self.values.take(rows.elements.values))
            return _finished(self.name, rows._replace(elements=elements))
        values = self.values.take(rows.values, axis=0)
        return values if self.lengths is None else Padded(values, self.lengths.take(rows.values))


@dataclass(frozen=True, kw_only=True)
class Computed:
    """An output column that is a raw column or the result of a step."""

    name: str
    source: Reference  # the raw column or result
    dtype: str  # NumPy dtype name of a single value
    width: int | None = None  # width of lists, None for single values

    @property
    def spec(self) -> ColumnSpec:
        return ColumnSpec(name=self.name, dtype=self.dtype, width=self.width)

    def read(self, column: AnyColumn) -> NDArray[Any] | Padded:
        return _finished(self.name, column)


class TransformColumn(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> ColumnSpec: ...


class Transform(Protocol):
    """Interface for objects that transform raw rows into model inputs, such as `TransformPlan`."""

    @property
    def inputs(self) -> tuple[ColumnSpec, ...]: ...

    @property
    def columns(self) -> Sequence[TransformColumn]: ...

    def run(
        self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> dict[str, NDArray[Any] | Padded]:
        pass

    def save(self, directory: Path) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TransformPlan:
    """A compiled transform of raw rows to model inputs for one serving graph."""

    inputs: tuple[ColumnSpec, ...]  # raw columns of a request
    indexes: tuple[KeyIndex, ...]  # the indexes on raw columns
    columns: tuple[Column | Computed, ...]  # the output columns, in the workflow's order
    steps: tuple[StepCall | KeyIndex, ...] = ()  # on raw columns and earlier results, including indexes on them

    def __post_init__(self) -> None:
        names = {spec.name for spec in self.inputs}
        for made, call in enumerate(self.calls):
            _check_references(call.inputs, names, made)
        _check_references(tuple(column.source for column in self.columns), names, len(self.calls))

    @cached_property
    def calls(self) -> tuple[StepCall | KeyIndex, ...]:
        """The indexes and steps, in the order in which their results are numbered."""
        return (*self.indexes, *self.steps)

    def _check_rows(self) -> None:
        """Check that every index refers only to existing table rows, because a plan file may be corrupt."""
        for column in self.columns:
            if isinstance(column, Column) and isinstance(index := self.calls[column.index], KeyIndex):
                first, last = index.row_bounds
                length = min(len(column.values), len(column.values if column.lengths is None else column.lengths))
                if first < 0 or last >= length:
                    raise ValueError(
                        f"an index refers to rows {first} to {last} of column {column.name!r}, which has {length} rows"
                    )

    @cached_property
    def _schedule(self) -> tuple[list[int], ...]:
        """The calls to run for each output column, excluding calls already run for earlier columns."""
        first: dict[Reference, int] = {}
        for number, column in reversed([*enumerate(self.columns)]):
            first[column.source] = number
        for made in reversed(range(len(self.calls))):
            for reference in self.calls[made].inputs if made in first else ():
                first[reference] = min(first.get(reference, first[made]), first[made])
        schedule: tuple[list[int], ...] = tuple([] for _ in self.columns)
        for made in range(len(self.calls)):
            if made in first:
                schedule[first[made]].append(made)
        return schedule

    def run(
        self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> dict[str, NDArray[Any] | Padded]:
        """Transform raw rows to output columns. An empty input yields an empty output.

        `inputs` has arrays [num_rows] of the dtypes in the plan's inputs, strings maybe as Arrow arrays, and `Padded`
        for lists; `valid` is False where a value or a whole list is missing. NaN, None and lists of length
        `MISSING_LIST` always count as missing.

        Raises:
            RequestError: an input is missing or has another dtype, the inputs differ in length, or a value is missing
                that the workflow does not fill.
        """
        valid = valid or {}
        check_inputs(self.inputs, inputs, valid)
        return self.made_of(inputs, valid)

    def made_of(self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]]) -> dict[str, NDArray[Any] | Padded]:
        """Transform raw rows like `run`, but unchecked. Inputs may differ in length unless an output combines them."""
        results: dict[Reference, AnyColumn] = {
            spec.name: column_of(spec, inputs[spec.name], valid.get(spec.name)) for spec in self.inputs
        }
        made = {}
        with np.errstate(all="ignore"):  # the logarithm of a negative number is NaN, as in NVTabular
            for column, calls in zip(self.columns, self._schedule, strict=True):
                for number in calls:
                    call = self.calls[number]
                    results[number] = call.run(*(results[reference] for reference in call.inputs))
                made[column.name] = column.read(results[column.source])
        return made

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        writer = ArrayWriter(directory)
        document = {
            "format_version": FORMAT_VERSION,
            "inputs": [encode(spec, writer) for spec in self.inputs],
            "indexes": [encode(index, writer) for index in self.indexes],
            "steps": [encode(step, writer) for step in self.steps],
            "columns": [encode(column, writer) for column in self.columns],
        }
        (directory / PLAN_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> "TransformPlan":
        """Load a plan, memory-mapping its arrays.

        Raises:
            ArtifactError: the plan is missing or damaged.
        """
        path = directory / PLAN_FILE
        try:
            document = json.loads(read_regular(path, _MAX_BYTES))
            if document["format_version"] != FORMAT_VERSION:
                raise ArtifactError(
                    f"{path} has format version {document['format_version']!r:.50}, expected {FORMAT_VERSION}. "
                    "Export again."
                )
            if any(call.get("step", {}).get("kind") == "Similarity" for call in document["steps"]):
                raise ValueError("ColumnSimilarity is no longer compiled. Export with --uncompiled ColumnSimilarity")
            inputs, indexes, steps, columns = (
                [decode(entry, _KINDS, directory) for entry in document[name]]
                for name in ("inputs", "indexes", "steps", "columns")
            )
            if stacks := [decode(entry, _KINDS, directory) for entry in document.get("stacks", ())]:
                steps, columns = _unstacked(stacks, len(indexes), steps, columns)
            plan = cls(inputs=tuple(inputs), indexes=tuple(indexes), steps=tuple(steps), columns=tuple(columns))
            plan._check_rows()
            return plan
        except _DAMAGED as error:
            raise ArtifactError(
                f"{path} cannot be read ({type(error).__name__}: {in_short(error)}). Export again."
            ) from None


_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        ColumnSpec, KeyIndex, StepCall, Column, Computed, Vector, Lists, *STEPS,
        Stack, StackedColumn, StackedArithmetic, StackedBucket, StackedLookup,
    )
}  # fmt: skip
_KINDS["TensorSpec"] = ColumnSpec  # its name in plans of version 0.1


def _unstacked(
    stacks: Sequence[Stack], num_indexes: int, steps: Sequence[StepCall | KeyIndex], columns: Sequence[Any]
) -> tuple[list[StepCall | KeyIndex], list[Column | Computed]]:
    steps, sources = [*steps], []
    for stack in stacks:
        ends: list[Reference] = []
        for number, name in enumerate(stack.inputs):
            source: Reference = name
            for step in stack.of_column(number):
                steps.append(StepCall(step=step, inputs=(source,)))
                source = num_indexes + len(steps) - 1
            ends.append(source)
        sources.append(ends)
    return steps, [
        Computed(name=column.name, source=sources[column.stack][column.row], dtype=column.dtype)
        if isinstance(column, StackedColumn)
        else column
        for column in columns
    ]


def _check_references(references: tuple[Reference, ...], names: set[str], num_made: int) -> None:
    for reference in references:
        if reference not in names if isinstance(reference, str) else not 0 <= reference < num_made:
            raise ValueError(f"{reference!r} is neither one of the inputs {sorted(names)} nor an earlier result")


def check_inputs(specs: Sequence[ColumnSpec], inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]]) -> None:
    """Check that raw columns match their specs and have equal lengths; see `TransformPlan.run`."""
    lengths = {}
    for spec in specs:
        given = inputs.get(spec.name)
        if given is None:
            raise RequestError(f"input {spec.name!r} is missing. Expected: {[s.name for s in specs]}.")
        lengths[spec.name] = _checked_length(spec, given)
    num_rows = {*lengths.values()}
    if len(num_rows) > 1:
        raise RequestError(f"inputs have different numbers of rows: {lengths}. Send the same number of rows for each.")
    if unknown := valid.keys() - lengths.keys():
        raise RequestError(f"valid contains {sorted(unknown)}, which are not inputs. Available: {sorted(lengths)}.")
    for name, mask in valid.items():
        if mask.dtype != np.bool_ or mask.ndim != 1 or len(mask) not in num_rows:
            raise RequestError(f"valid[{name!r}] is {mask.dtype} {list(mask.shape)}, expected bool {[*num_rows]}.")


def _checked_length(spec: ColumnSpec, given: NDArray[Any] | pa.LargeBinaryArray | Padded) -> int:
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
    if isinstance(given, Padded) and _shortest(spec.name, given) == MISSING_LIST:
        there = given.lengths != MISSING_LIST
        valid = there if valid is None else valid & there
    try:
        return lists_of(given, valid) if isinstance(given, Padded) else vector_of(given, valid)
    except (pa.ArrowException, TypeError) as error:
        raise RequestError(f"input {spec.name!r} contains a non-string value ({error}). Send bytes or str.") from None


def _shortest(name: str, lists: Padded) -> int:
    """Check the lengths of a column's lists and return the minimum length."""
    num_rows, width = lists.values.shape
    lengths = lists.lengths
    fits = lengths.shape == (num_rows,) and lengths.dtype.kind in "iu"
    shortest = int(lengths.min()) if fits and num_rows else 0
    if not fits or not MISSING_LIST <= shortest <= int(lengths.max(initial=0)) <= width:
        raise RequestError(f"lengths of {name!r} are {lengths}, which do not match its shape {[num_rows, width]}.")
    return shortest


def _finished(name: str, column: AnyColumn) -> NDArray[Any] | Padded:
    elements = column.elements if isinstance(column, Lists) else column
    for part in (column, elements):
        if part.valid is not None and not part.valid.all():
            raise RequestError(
                f"column {name!r} has missing values, first in row {int(np.argmin(part.valid)) + 1}, and the workflow "
                "does not fill them. Send a value, or add FillMissing or NullToEmptyList to the workflow."
            )
    values: NDArray[Any] = elements.values
    return padded_of(column) if isinstance(column, Lists) else values
