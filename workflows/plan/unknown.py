"""Detection of raw request columns with values that a plan does not know, such as 7 sent for 0007."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankline.workflows.plan.columns import AnyColumn, Lists, Vector, is_missing
from rankline.workflows.plan.key_index import KeyIndex
from rankline.workflows.plan.plan import ColumnSpec, Inputs, TransformPlan, column_of
from rankline.workflows.plan.stacks import HashLookup
from rankline.workflows.plan.tensors import Tensors, tensor_call


def unknown_columns(plan: TransformPlan, tensors: Tensors) -> list[str]:
    """Return the looked-up columns that have values in these rows, but none that the plan knows."""
    counted = tensor_call(_Counter(plan))(tensors)  # type: ignore[arg-type]  # nothing saves it
    return sorted(name for name, ((num_unknown, num_values),) in counted.items() if 0 < num_values == num_unknown)


@dataclass(frozen=True)
class _Counter:
    """A `Transform` that counts unknown and total values of each raw column, by the index that knows the most."""

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
        """Yield name → mask of unknown values, for each index or table that reads one raw column."""
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
