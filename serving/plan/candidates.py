"""Several candidates per row: a plan in two parts, so that what the candidates of a row share is transformed once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.plan.index import KeyIndex
from serving.plan.plan import Column, Computed, Inputs, Reference, StackedColumn, StepCall, Transform, TransformPlan
from workflows.errors import LoweringError, RequestError
from workflows.lists import Padded


@dataclass(frozen=True, kw_only=True)
class CandidatePlan:
    """A plan whose rows may hold several candidates.

    Attributes:
        shared: makes the columns of which there is one per row.
        single: makes those of which there is one per candidate.
        names: the columns that come out, in the order of the whole plan.
    """

    shared: TransformPlan
    single: TransformPlan
    names: tuple[str, ...]

    @classmethod
    def split(cls, plan: Transform, candidates: Collection[str]) -> "CandidatePlan":
        """Part a plan by its raw columns.

        Args:
            plan: of one candidate per row.
            candidates: raw columns that hold a value per candidate.

        Raises:
            LoweringError: they are not raw columns or lists, or a column that comes out is a list per candidate or is
                made of candidates and other raw columns together.
        """
        if not isinstance(plan, TransformPlan):
            raise LoweringError("rows with candidates need a workflow that is compiled. Leave out --uncompiled.")
        _check_inputs(plan, candidates)
        origins = _Origins(plan)
        names = frozenset(spec.name for spec in plan.inputs)
        many = names & frozenset(candidates)
        for column in plan.columns:
            _check_output(column, origins.of_column(column), many)
        return cls(
            shared=origins.part(names - many),
            single=origins.part(many),
            names=tuple(column.name for column in plan.columns),
        )

    @cached_property
    def candidates(self) -> frozenset[str]:
        """Raw columns that hold a value per candidate."""
        return frozenset(spec.name for spec in self.single.inputs)

    @cached_property
    def made_of_candidates(self) -> tuple[str, ...]:
        """Columns that come out per candidate."""
        return tuple(column.name for column in self.single.columns)

    def run(
        self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> dict[str, NDArray[Any] | Padded]:
        """Transform raw rows.

        Args:
            inputs: as of `TransformPlan.run`; those of candidates are [num_rows, num_candidates].
            valid: as of `TransformPlan.run`; in the shape of the inputs.

        Returns:
            As `TransformPlan.run`; columns made of candidates are [num_rows, num_candidates].

        Raises:
            RequestError: there are no candidates, or not as many of each column, or see `TransformPlan.run`.
        """
        shape = self._shape_of(inputs)
        (shared, single), (shared_valid, single_valid) = self._parted(inputs), self._parted(valid or {})
        made: dict[str, Any] = self.shared.run(shared, shared_valid)
        for name, column in self.single.run(single, single_valid).items():
            made[name] = column.reshape(shape)  # type: ignore[union-attr]  # no lists, as checked when it was split
        return {name: made[name] for name in self.names}

    def _parted(self, columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Those that are shared, and those of candidates, one candidate after another."""
        many = self.candidates
        return (
            {name: column for name, column in columns.items() if name not in many},
            {name: column.reshape(-1) for name, column in columns.items() if name in many},
        )

    def _shape_of(self, inputs: Inputs) -> tuple[int, int]:
        """Rows, and candidates of each."""
        shapes: dict[str, Any] = {
            name: getattr(inputs[name], "shape", ()) for name in self.candidates if name in inputs
        }
        for name, shape in shapes.items():
            if len(shape) != 2 or not shape[1]:
                raise RequestError(f"input {name!r} has shape {list(shape)}, expected at least one candidate per row.")
        given = {len(column.values if isinstance(column, Padded) else column) for column in inputs.values()}
        if len(set(shapes.values())) > 1 or len(given) > 1:
            found = {name: list(shape) for name, shape in shapes.items()}
            raise RequestError(f"candidates {found} do not fit each other or the rows, of which there are {given}.")
        num_rows, count = next(iter(shapes.values()), (0, 1))
        return num_rows, count


def _check_inputs(plan: TransformPlan, candidates: Collection[str]) -> None:
    single = [spec.name for spec in plan.inputs if spec.width is None]
    if wrong := sorted(set(candidates) - set(single)):
        raise LoweringError(f"candidates {wrong} are not raw columns of single values. Available: {single}.")


def _check_output(
    column: Column | Computed | StackedColumn, origin: frozenset[str], candidates: frozenset[str]
) -> None:
    if origin & candidates and (others := sorted(origin - candidates)):
        raise LoweringError(
            f"column {column.name!r} is made of {sorted(origin & candidates)}, which may hold several candidates per "
            f"row, and of {others}, which all of them share. Leave such a column to the model."
        )
    if origin & candidates and column.spec.width is not None:
        raise LoweringError(
            f"column {column.name!r} is a list for each candidate, expected a single value. Leave it out."
        )


class _Origins:
    """Which raw columns each part of a plan is made of."""

    def __init__(self, plan: TransformPlan) -> None:
        self._plan = plan
        self._of: dict[Reference, frozenset[str]] = {spec.name: frozenset([spec.name]) for spec in plan.inputs}
        for number, call in enumerate((*plan.indexes, *plan.steps)):
            self._of[number] = frozenset().union(*(self._of[reference] for reference in call.inputs))

    def of_column(self, column: Column | Computed | StackedColumn) -> frozenset[str]:
        """Raw columns of an output."""
        if isinstance(column, StackedColumn):
            return frozenset(self._plan.stacks[column.stack].inputs)
        return self._of[column.index if isinstance(column, Column) else column.source]

    def part(self, names: frozenset[str]) -> TransformPlan:
        """What is made of some raw columns alone, as a plan."""
        plan = self._plan
        calls = (*plan.indexes, *plan.steps)
        kept = [number for number in range(len(calls)) if self._of[number] <= names]
        numbers: dict[Reference, Reference] = {old: new for new, old in enumerate(kept)}
        numbers |= {name: name for name in names}
        renumbered = [_renumbered(calls[number], numbers) for number in kept]
        num_indexes = sum(number < len(plan.indexes) for number in kept)
        stacks = [number for number, stack in enumerate(plan.stacks) if set(stack.inputs) <= names]
        columns = [column for column in plan.columns if self.of_column(column) <= names]
        return TransformPlan(
            inputs=tuple(spec for spec in plan.inputs if spec.name in names),
            indexes=tuple(renumbered[:num_indexes]),  # type: ignore[arg-type]  # the first ones are indexes
            steps=tuple(renumbered[num_indexes:]),
            stacks=tuple(plan.stacks[number] for number in stacks),
            columns=tuple(_moved(column, numbers, stacks) for column in columns),
        )


def _renumbered(call: StepCall | KeyIndex, numbers: Mapping[Reference, Reference]) -> StepCall | KeyIndex:
    inputs = tuple(numbers[reference] for reference in call.inputs)
    return replace(call, input=inputs[0]) if isinstance(call, KeyIndex) else replace(call, inputs=inputs)


def _moved(
    column: Column | Computed | StackedColumn, numbers: Mapping[Reference, Reference], stacks: list[int]
) -> Column | Computed | StackedColumn:
    if isinstance(column, StackedColumn):
        return replace(column, stack=stacks.index(column.stack))
    if isinstance(column, Computed):
        return replace(column, source=numbers[column.source])
    return replace(column, index=numbers[column.index])  # type: ignore[arg-type]  # a result's number
