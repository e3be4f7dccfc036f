"""Adapters that run plans on the tensors sent in requests and between the steps of an ensemble."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankline.workflows.core.errors import LoweringError, RequestError
from rankline.workflows.plan.columns import AnyColumn, Lists, Vector, is_missing
from rankline.workflows.plan.key_index import KeyIndex
from rankline.workflows.plan.plan import (
    ColumnSpec,
    Inputs,
    Reference,
    Transform,
    TransformPlan,
    check_inputs,
    column_of,
)
from rankline.workflows.plan.stacks import HashLookup
from rankline.workflows.schema.ragged import Padded, padded_tensors
from rankline.workflows.schema.tensor_names import NNZS, VALUES


@dataclass(frozen=True, kw_only=True)
class CandidatePlan:
    """A plan whose rows may have several candidates."""

    plan: TransformPlan  # plan for one candidate per row
    candidates: frozenset[str]  # raw columns with one value per candidate
    made_of_candidates: tuple[str, ...]  # output columns with one value per candidate

    @classmethod
    def of(cls, plan: Transform, candidates: Collection[str]) -> "CandidatePlan":
        if not isinstance(plan, TransformPlan):
            raise LoweringError("rows with candidates require a compiled workflow. Omit --uncompiled.")
        single = [spec.name for spec in plan.inputs if spec.width is None]
        if wrong := sorted(set(candidates) - set(single)):
            raise LoweringError(f"candidates {wrong} are not single-valued raw columns. Available: {single}.")
        many = frozenset(candidates)
        return cls(plan=plan, candidates=many, made_of_candidates=tuple(_checked_outputs(plan, many)))

    def run(
        self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> dict[str, NDArray[Any] | Padded]:
        """Transform raw rows like `TransformPlan.run`.

        Candidate columns, their masks, and the columns computed from them are [num_rows, num_candidates].

        Raises:
            RequestError: there are no candidates, candidate columns differ in their number, or see `TransformPlan.run`.
        """
        shape = self._shape_of(inputs)
        flat_inputs, flat_valid = (
            {name: column.reshape(-1) if name in self.candidates else column for name, column in columns.items()}  # type: ignore[union-attr]
            for columns in (inputs, valid or {})
        )
        for of_candidates in (False, True):
            specs = [spec for spec in self.plan.inputs if (spec.name in self.candidates) is of_candidates]
            masks = {name: mask for name, mask in flat_valid.items() if (name in self.candidates) is of_candidates}
            check_inputs(specs, flat_inputs, masks)  # type: ignore[arg-type]
        made: dict[str, Any] = self.plan.made_of(flat_inputs, flat_valid)  # type: ignore[arg-type]
        return made | {name: made[name].reshape(shape) for name in self.made_of_candidates}

    def _shape_of(self, inputs: Inputs) -> tuple[int, int]:
        shapes: dict[str, Any] = {
            name: getattr(inputs[name], "shape", ()) for name in self.candidates if name in inputs
        }
        for name, shape in shapes.items():
            if len(shape) != 2 or not shape[1]:
                raise RequestError(f"input {name!r} has shape {list(shape)}, expected at least one candidate per row.")
        given = {len(column.values if isinstance(column, Padded) else column) for column in inputs.values()}
        if len(set(shapes.values())) > 1 or len(given) > 1:
            found = {name: list(shape) for name, shape in shapes.items()}
            raise RequestError(f"candidate shapes {found} do not match each other or the number of rows, {given}.")
        num_rows, count = next(iter(shapes.values()), (0, 1))
        return num_rows, count


def _checked_outputs(plan: TransformPlan, candidates: frozenset[str]) -> list[str]:
    """Return the names of the output columns computed from candidates. Raise `LoweringError` if an output also depends
    on other columns.
    """
    origins: dict[Reference, frozenset[str]] = {spec.name: frozenset([spec.name]) for spec in plan.inputs}
    for number, call in enumerate(plan.calls):
        origins[number] = frozenset().union(*(origins[reference] for reference in call.inputs))
    made_of_candidates = []
    for column in plan.columns:
        origin = origins[column.source]
        if not origin & candidates:
            continue
        if others := sorted(origin - candidates):
            raise LoweringError(
                f"column {column.name!r} combines {sorted(origin & candidates)}, which may have several "
                f"candidates per row, with {others}, which the candidates share. Compute such a column in the "
                "model."
            )
        if column.spec.width is not None:
            raise LoweringError(
                f"column {column.name!r} is a list per candidate, expected a single value. Omit the column."
            )
        made_of_candidates.append(column.name)
    return made_of_candidates


Tensors: TypeAlias = Mapping[str, Any]
"""Name → array with the rows first. Strings with one value per row may also be a `LargeBinaryArray`."""


def tensor_call(
    plan: Transform, candidates: Collection[str] = (), max_list_length: int = 0
) -> Callable[[Tensors], dict[str, NDArray[Any]]]:
    """Return a function that runs a plan on request tensors and returns outputs in the layout of `padded_tensors`.

    Candidates are raw columns that may have several values per row, [num_rows, num_candidates]. Omitted columns are
    missing in all rows. Lists may be of any length if `max_list_length` is 0. The function raises RequestError.

    Raises:
        LoweringError: the plan does not support several candidates.
    """
    masks = {spec.mask.name: spec.name for spec in plan.inputs if spec.mask}
    lists = [spec.name + VALUES for spec in plan.inputs if spec.width is not None]
    of_columns = {spec.tensors[0].name: spec for spec in plan.inputs if spec.name not in candidates}
    transform = CandidatePlan.of(plan, candidates).run if candidates else plan.run

    def call(given: Tensors) -> dict[str, NDArray[Any]]:
        if lacking := [spec for name, spec in of_columns.items() if name not in given]:
            given = _with_missing(lacking, given)
        for name in lists if max_list_length else ():
            if (width := given[name].shape[1]) > max_list_length:
                raise RequestError(f"{name!r} has lists of {width} values, expected at most {max_list_length}.")
        valid = {column: _single(column, given[mask], candidates) for mask, column in masks.items() if mask in given}
        return padded_tensors(transform({spec.name: _column(spec, given, candidates) for spec in plan.inputs}, valid))

    return call


def _with_missing(lacking: Sequence[ColumnSpec], given: Tensors) -> Tensors:
    if not given:
        raise RequestError(f"the request has no columns, expected some of {[spec.name for spec in lacking]}.")
    num_rows = len(next(iter(given.values())))
    return {**given, **{name: array for spec in lacking for name, array in spec.missing(num_rows).items()}}


def _single(name: str, array: Any, candidates: Collection[str]) -> Any:
    return array if name in candidates or isinstance(array, pa.Array) else array.reshape(-1)


def _column(spec: ColumnSpec, tensors: Tensors, candidates: Collection[str]) -> Any:
    """Convert tensors of shape [num_rows, 1], or [num_rows, width] for lists and candidates, to a plan input."""
    if spec.width is None:
        return _single(spec.name, tensors[spec.name], candidates)
    return Padded(tensors[spec.name + VALUES], tensors[spec.name + NNZS].reshape(-1).astype(np.int32, copy=False))


def unknown_columns(plan: TransformPlan, tensors: Tensors) -> list[str]:
    """Return the names of non-empty lookup columns in which every value is unknown to the plan."""
    counted = tensor_call(_Counter(plan))(tensors)  # type: ignore[arg-type]  # nothing saves it
    return sorted(name for name, ((num_unknown, num_values),) in counted.items() if 0 < num_values == num_unknown)


@dataclass(frozen=True)
class _Counter:
    """A `Transform` that counts the values and the unknown values in each raw column. If several lookups read a column,
    it takes the minimum counts.
    """

    plan: TransformPlan

    @property
    def inputs(self) -> tuple[ColumnSpec, ...]:
        return self.plan.inputs

    def run(self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]] | None = None) -> dict[str, Any]:
        counts: dict[str, NDArray[np.int64]] = {}
        with np.errstate(all="ignore"):
            for name, unknown in self._of_lookups(inputs, valid or {}):
                count = np.array([[unknown.sum(), len(unknown)]])
                counts[name] = np.minimum(counts.get(name, count), count)
        return counts

    def _of_lookups(
        self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]]
    ) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yield each raw column's name and a mask of its unknown values, once per lookup that depends only on it."""
        columns: dict[str | int, AnyColumn] = {
            spec.name: column_of(spec, inputs[spec.name], valid.get(spec.name)) for spec in self.inputs
        }
        origins: dict[str | int, set[str]] = {spec.name: {spec.name} for spec in self.inputs}
        for number, call in enumerate((*self.plan.indexes, *self.plan.steps)):
            columns[number] = call.run(*(columns[reference] for reference in call.inputs))
            origins[number] = {name for reference in call.inputs for name in origins[reference]}
            if len(origins[number]) > 1:
                continue
            (name,), keys = origins[number], _elements(columns[call.inputs[0]])
            if isinstance(call, KeyIndex):
                yield name, (_elements(columns[number]).values < call.num_unknown)[~is_missing(keys)]
            elif isinstance(call.step, HashLookup):
                yield name, call.step.is_unknown(keys)[~is_missing(keys)]


def _elements(column: AnyColumn) -> Vector:
    return column.elements if isinstance(column, Lists) else column
