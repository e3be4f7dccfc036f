"""The compiled workflow of a step, or one that runs through NVTabular: alone, or before the model."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import triton_python_backend_utils as pb_utils

from serving.backends.served import Array, Run, ServedModel, whole_number
from serving.parameters import CANDIDATES, MAX_LIST_LENGTH, PLAN, names_in
from serving.plan import ColumnSpec, Transform, tensor_call
from serving.transforms import load_transform
from workflows.errors import RanklineError
from workflows.tensors import Tensor

# Arrow would import pandas, wherever it is installed, to ask whether an array is one of its own: 22 MB per process.
sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]


def load_workflow(model: ServedModel) -> Run:
    """A step that is the workflow alone.

    Raises:
        TritonModelException: it is missing or damaged, or does not fit the config.
    """
    return _run_of(_open_plan(model.version), model)


def load_behind_workflow(model: ServedModel, load: Callable[[ServedModel], Run]) -> Run:
    """A step with a workflow and a model, whose inputs are the workflow's outputs.

    Args:
        model: the whole step.
        load: loads a model whose inputs and outputs are as it is told.

    Raises:
        TritonModelException: as of `load` and `load_workflow`.
    """
    plan = _open_plan(model.version)
    between = tuple(tensor for column in plan.columns for tensor in column.spec.tensors)
    transform = _run_of(plan, replace(model, outputs=between))
    predict = load(replace(model, inputs=between))

    def run(*arrays: Array | None) -> Sequence[Array]:
        return predict(*transform(*arrays))

    return run


def _open_plan(version: Path) -> Transform:
    try:
        return load_transform(version / PLAN)
    except RanklineError as error:
        raise pb_utils.TritonModelException(str(error)) from error


def _run_of(plan: Transform, model: ServedModel) -> Run:
    masks = {spec.mask.name for spec in plan.inputs if spec.mask}
    _check(model.version, "inputs", [t for t in model.inputs if t.name not in masks], plan.inputs)
    _check(model.version, "outputs", model.outputs, [column.spec for column in plan.columns])
    max_list_length = whole_number(model.parameters, MAX_LIST_LENGTH, 0)
    try:
        transform = tensor_call(plan, names_in(model.parameters.get(CANDIDATES, "")), max_list_length)
    except RanklineError as error:
        raise pb_utils.TritonModelException(f"{model.version / PLAN}: {error} Export again.") from error

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
            f"config.pbtxt has {side} {sorted(names)}, {version / PLAN} has {sorted(expected)}. Export again."
        )
