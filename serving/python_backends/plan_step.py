"""Load a step's workflow, on its own or followed by a model."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import triton_python_backend_utils as pb_utils

from rankline.serving.python_backends.model_arguments import Array, Run, ServedModel, whole_number
from rankline.serving.triton.step import CANDIDATES, MAX_LIST_LENGTH, PLAN, names_in
from rankline.serving.triton.transforms import load_call
from rankline.workflows.core.errors import LoweringError, RanklineError
from rankline.workflows.plan import ColumnSpec, Transform
from rankline.workflows.schema.tensors import Tensor

# If pandas is installed, Arrow imports it to check whether an array is a pandas object: 22 MB per process.
sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]


def load_workflow(model: ServedModel) -> Run:
    transform, call = _open(model)
    _check(model.version, "outputs", model.outputs, [column.spec for column in transform.columns])
    return _run_of(call, model.inputs, model.outputs)


def load_behind_workflow(model: ServedModel, load: Callable[[ServedModel], Run]) -> Run:
    """Load a step in which a model receives the outputs of a workflow."""
    transform, call = _open(model)
    between = tuple(tensor for column in transform.columns for tensor in column.spec.tensors)
    encode, predict = _run_of(call, model.inputs, between), load(replace(model, inputs=between))

    def run(*arrays: Array | None) -> Sequence[Array]:
        return predict(*encode(*arrays))

    return run


def _open(model: ServedModel) -> tuple[Transform, Callable[[Mapping[str, Array]], Mapping[str, Array]]]:
    candidates = names_in(model.parameters.get(CANDIDATES, ""))
    max_list_length = whole_number(model.parameters, MAX_LIST_LENGTH, 0)
    try:
        transform, call = load_call(model.version / PLAN, candidates, max_list_length)
    except LoweringError as error:
        raise pb_utils.TritonModelException(f"{model.version / PLAN}: {error} Export again.") from error
    except RanklineError as error:
        raise pb_utils.TritonModelException(str(error)) from error
    masks = {spec.mask.name for spec in transform.inputs if spec.mask}
    _check(model.version, "inputs", [t for t in model.inputs if t.name not in masks], transform.inputs)
    return transform, call


def _run_of(
    call: Callable[[Mapping[str, Array]], Mapping[str, Array]], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Run:
    def run(*arrays: Array | None) -> list[Array]:
        pairs = zip((tensor.name for tensor in inputs), arrays, strict=True)
        made = call({name: array for name, array in pairs if array is not None})
        return [made[tensor.name] for tensor in outputs]

    return run


def _check(version: Path, side: str, declared: Sequence[Tensor], specs: Sequence[ColumnSpec]) -> None:
    names = {tensor.name for tensor in declared}
    expected = {tensor.name for spec in specs for tensor in spec.tensors}
    if names != expected:
        raise pb_utils.TritonModelException(
            f"config.pbtxt has {side} {sorted(names)}, but {version / PLAN} has {sorted(expected)}. Export again."
        )
