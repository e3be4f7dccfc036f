"""Triton backend `nvtabular`: serves the compiled workflow at `<version>/plan`.

A folder with this file is a backend (Triton's "Python-based backend"), so a model repository holds the plan and a
config, and no code. A column of lists is two tensors, `name__values` with zeros or empty strings behind the end of each
list, and `name__nnzs`; a third, `name__valid`, may mark what is missing. See `workflows.tensor_names`.

Parameter read from `config.pbtxt`:

    CANDIDATES        raw columns that may hold several values per row, [num_rows, num_candidates]; what they share is
                      transformed once
    MAX_LIST_LENGTH   most values of a list, and most candidates, of one row of a request, default 0: any number
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from serving.backends.batching import Array, BatchingModel, Run, ServedModel, whole_number
from serving.parameters import CANDIDATES, MAX_LIST_LENGTH, names_in
from serving.plan import CandidatePlan, ColumnSpec, TransformPlan
from workflows.errors import RanklineError, RequestError
from workflows.lists import Padded, padded_tensors
from workflows.tensor_names import NNZS, VALUES
from workflows.tensors import Tensor

# Arrow would import pandas, wherever it is installed, to ask whether an array is one of its own: 22 MB per process.
sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]


class TritonPythonModel(BatchingModel):
    """A plan in Triton."""

    FRAMEWORK = "the workflow"

    def load(self, model: ServedModel) -> Run:
        """Map the plan into memory."""
        return make_run(open_plan(model.version), model)


def open_plan(version: Path) -> TransformPlan:
    """The plan of a version directory.

    Raises:
        TritonModelException: it is missing or damaged.
    """
    try:
        return TransformPlan.load(version / "plan")
    except RanklineError as error:
        raise pb_utils.TritonModelException(str(error)) from error


def make_run(plan: TransformPlan, model: ServedModel) -> Run:
    """A plan as a function of tensors.

    Args:
        plan: what to run.
        model: names the tensors.

    Raises:
        TritonModelException: it names others than the plan has, or a parameter is wrong.
    """
    max_list_length = whole_number(model.parameters, MAX_LIST_LENGTH, 0)
    masks = {spec.mask.name: spec.name for spec in plan.inputs if spec.mask}
    _check(model.version, "inputs", [t for t in model.inputs if t.name not in masks], plan.inputs)
    _check(model.version, "outputs", model.outputs, [column.spec for column in plan.columns])
    lists = [spec.name + VALUES for spec in plan.inputs if spec.width is not None]
    candidates = names_in(model.parameters.get(CANDIDATES, ""))
    transform = _split(model.version, plan, candidates).run if candidates else plan.run

    def run(*arrays: Array | None) -> list[Array]:
        pairs = zip((tensor.name for tensor in model.inputs), arrays, strict=True)
        given = {name: array for name, array in pairs if array is not None}
        if max_list_length:
            _limit_lists(lists, given, max_list_length)
        valid = {column: _single(column, given[mask], candidates) for mask, column in masks.items() if mask in given}
        made = padded_tensors(transform({spec.name: _column(spec, given, candidates) for spec in plan.inputs}, valid))
        return [made[tensor.name] for tensor in model.outputs]

    return run


def _split(version: Path, plan: TransformPlan, candidates: Collection[str]) -> CandidatePlan:
    try:
        return CandidatePlan.split(plan, candidates)
    except RanklineError as error:
        raise pb_utils.TritonModelException(f"{version / 'plan'}: {error} Export again.") from error


def _limit_lists(names: Sequence[str], tensors: Mapping[str, Array], max_list_length: int) -> None:
    for name in names:
        if (width := tensors[name].shape[1]) > max_list_length:
            raise RequestError(f"{name!r} has lists of {width} values, expected at most {max_list_length}.")


def _check(version: Path, side: str, declared: Sequence[Tensor], specs: Sequence[ColumnSpec]) -> None:
    names = {tensor.name for tensor in declared}
    expected = {tensor.name for spec in specs for tensor in spec.tensors}
    if names != expected:
        raise pb_utils.TritonModelException(
            f"config.pbtxt has {side} {sorted(names)}, {version / 'plan'} has {sorted(expected)}. Export again."
        )


def _single(name: str, array: Array, candidates: Collection[str]) -> Array:
    return array if name in candidates else array.reshape(-1)


def _column(spec: ColumnSpec, tensors: Mapping[str, Array], candidates: Collection[str]) -> Array | Padded:
    """Tensors [num_rows, 1], and [num_rows, width] of lists or candidates, as the plan takes them."""
    if spec.width is None:
        return _single(spec.name, tensors[spec.name], candidates)
    return Padded(tensors[spec.name + VALUES], tensors[spec.name + NNZS].reshape(-1).astype(np.int32, copy=False))
