"""Triton backend `nvtabular`: serves the compiled workflow at `<version>/plan`, or one that runs through NVTabular.

A folder with this file is a backend (Triton's "Python-based backend"), so a model repository holds the plan and a
config, and no code. A column of lists is two tensors, `name__values` with zeros or empty strings behind the end of each
list, and `name__nnzs`; a third, `name__valid`, may mark what is missing. See `workflows.tensor_names`.

Parameter read from `config.pbtxt`:

    CANDIDATES        raw columns that may hold several values per row, [num_rows, num_candidates]; what they share is
                      transformed once
    MAX_LIST_LENGTH   most values of a list, and most candidates, of one row of a request, default 0: any number
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import triton_python_backend_utils as pb_utils

from serving.backends.batching import Array, BatchingModel, Run, ServedModel, whole_number
from serving.parameters import CANDIDATES, MAX_LIST_LENGTH, names_in
from serving.plan import ColumnSpec, Transform, tensor_call
from serving.transforms import load_transform
from workflows.errors import RanklineError
from workflows.tensors import Tensor

# Arrow would import pandas, wherever it is installed, to ask whether an array is one of its own: 22 MB per process.
sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]


class TritonPythonModel(BatchingModel):
    """A plan in Triton."""

    FRAMEWORK = "the workflow"

    def load(self, model: ServedModel) -> Run:
        """Map the plan into memory."""
        return make_run(open_plan(model.version), model)


def open_plan(version: Path) -> Transform:
    """The plan of a version directory.

    Raises:
        TritonModelException: it is missing or damaged.
    """
    try:
        return load_transform(version / "plan")
    except RanklineError as error:
        raise pb_utils.TritonModelException(str(error)) from error


def make_run(plan: Transform, model: ServedModel) -> Run:
    """A plan as a function of tensors.

    Args:
        plan: what to run.
        model: names the tensors.

    Raises:
        TritonModelException: it names others than the plan has, or a parameter is wrong.
    """
    masks = {spec.mask.name for spec in plan.inputs if spec.mask}
    _check(model.version, "inputs", [t for t in model.inputs if t.name not in masks], plan.inputs)
    _check(model.version, "outputs", model.outputs, [column.spec for column in plan.columns])
    max_list_length = whole_number(model.parameters, MAX_LIST_LENGTH, 0)
    try:
        transform = tensor_call(plan, names_in(model.parameters.get(CANDIDATES, "")), max_list_length)
    except RanklineError as error:
        raise pb_utils.TritonModelException(f"{model.version / 'plan'}: {error} Export again.") from error

    def run(*arrays: Array | None) -> list[Array]:
        pairs = zip((tensor.name for tensor in model.inputs), arrays, strict=True)
        made = transform({name: array for name, array in pairs if array is not None})
        return [made[tensor.name] for tensor in model.outputs]

    return run


def _check(version: Path, side: str, declared: Sequence[Tensor], specs: Sequence[ColumnSpec]) -> None:
    names = {tensor.name for tensor in declared}
    expected = {tensor.name for spec in specs for tensor in spec.tensors}
    if names != expected:
        raise pb_utils.TritonModelException(
            f"config.pbtxt has {side} {sorted(names)}, {version / 'plan'} has {sorted(expected)}. Export again."
        )
