"""Plans as functions of tensors, as sent in requests and between the steps of an ensemble."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankline.workflows.core.errors import RequestError
from rankline.workflows.plan.candidates import CandidatePlan
from rankline.workflows.plan.plan import ColumnSpec, Transform
from rankline.workflows.schema.ragged import Padded, padded_tensors
from rankline.workflows.schema.tensor_names import NNZS, VALUES

Tensors: TypeAlias = Mapping[str, Any]
"""Name → array with the rows first. Strings with one value per row may also be a `LargeBinaryArray`."""


def tensor_call(
    plan: Transform, candidates: Collection[str] = (), max_list_length: int = 0
) -> Callable[[Tensors], dict[str, NDArray[Any]]]:
    """Return a plan as a function of tensors.

    Args:
        plan: the plan to run.
        candidates: raw columns that may have several values per row, [num_rows, num_candidates].
        max_list_length: maximum length of a list; 0 for no limit.

    Returns:
        A function from the tensors of a request to the plan's outputs, in the layout of `padded_tensors`. Columns that
        the request omits are missing in all rows. It raises RequestError.

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
        if max_list_length:
            _limit_lists(lists, given, max_list_length)
        valid = {column: _single(column, given[mask], candidates) for mask, column in masks.items() if mask in given}
        return padded_tensors(transform({spec.name: _column(spec, given, candidates) for spec in plan.inputs}, valid))

    return call


def _with_missing(lacking: Sequence[ColumnSpec], given: Tensors) -> Tensors:
    if not given:
        raise RequestError(f"the request has no column, expected some of {[spec.name for spec in lacking]}.")
    num_rows = len(next(iter(given.values())))
    return {**given, **{name: array for spec in lacking for name, array in spec.missing(num_rows).items()}}


def _limit_lists(names: Sequence[str], tensors: Tensors, max_list_length: int) -> None:
    for name in names:
        if (width := tensors[name].shape[1]) > max_list_length:
            raise RequestError(f"{name!r} has lists of {width} values, expected at most {max_list_length}.")


def _single(name: str, array: Any, candidates: Collection[str]) -> Any:
    return array if name in candidates or isinstance(array, pa.Array) else array.reshape(-1)


def _column(spec: ColumnSpec, tensors: Tensors, candidates: Collection[str]) -> Any:
    """Convert tensors [num_rows, 1], or [num_rows, width] for lists and candidates, to an input of the plan."""
    if spec.width is None:
        return _single(spec.name, tensors[spec.name], candidates)
    return Padded(tensors[spec.name + VALUES], tensors[spec.name + NNZS].reshape(-1).astype(np.int32, copy=False))
