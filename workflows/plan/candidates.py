"""Plans for several candidates per row; columns that the candidates share are transformed once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankline.workflows.core.errors import LoweringError, RequestError
from rankline.workflows.plan.plan import Inputs, Reference, Transform, TransformPlan, check_inputs
from rankline.workflows.schema.ragged import Padded


@dataclass(frozen=True, kw_only=True)
class CandidatePlan:
    """A plan whose rows may have several candidates.

    Attributes:
        plan: plan for one candidate per row.
        candidates: raw columns with one value per candidate.
        made_of_candidates: output columns with one value per candidate.
    """

    plan: TransformPlan
    candidates: frozenset[str]
    made_of_candidates: tuple[str, ...]

    @classmethod
    def of(cls, plan: Transform, candidates: Collection[str]) -> "CandidatePlan":
        """Return a plan in which some raw columns are candidates."""
        if not isinstance(plan, TransformPlan):
            raise LoweringError("rows with candidates need a workflow that is compiled. Leave out --uncompiled.")
        single = [spec.name for spec in plan.inputs if spec.width is None]
        if wrong := sorted(set(candidates) - set(single)):
            raise LoweringError(f"candidates {wrong} are not raw columns of single values. Available: {single}.")
        many = frozenset(candidates)
        return cls(plan=plan, candidates=many, made_of_candidates=tuple(_checked_outputs(plan, many)))

    def run(
        self, inputs: Inputs, valid: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> dict[str, NDArray[Any] | Padded]:
        """Transform raw rows.

        Args:
            inputs: see `TransformPlan.run`; candidate columns are [num_rows, num_candidates].
            valid: see `TransformPlan.run`; in the shape of the inputs.

        Returns:
            See `TransformPlan.run`; columns computed from candidates are [num_rows, num_candidates].

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
            raise RequestError(f"candidates {found} do not fit each other or the rows, of which there are {given}.")
        num_rows, count = next(iter(shapes.values()), (0, 1))
        return num_rows, count


def _checked_outputs(plan: TransformPlan, candidates: frozenset[str]) -> list[str]:
    """Return the outputs computed from candidates. Raise `LoweringError` if one also depends on other columns."""
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
                f"column {column.name!r} is made of {sorted(origin & candidates)}, which may hold several candidates "
                f"per row, and of {others}, which all of them share. Leave such a column to the model."
            )
        if column.spec.width is not None:
            raise LoweringError(
                f"column {column.name!r} is a list for each candidate, expected a single value. Leave it out."
            )
        made_of_candidates.append(column.name)
    return made_of_candidates
