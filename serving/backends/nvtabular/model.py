"""Triton backend `nvtabular`: serves the compiled workflow at `<version>/plan`.

A folder with this file is a backend (Triton's "Python-based backend"), so a model repository holds the plan and a
config, and no code. A column of lists is two tensors, `name__values` with zeros or empty strings behind the end of each
list, and `name__nnzs`; see `workflows.tensor_names`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from serving.backends.batching import Array, BatchingModel, Run, ServedModel, Tensor
from serving.plan import Padded, TensorSpec, TransformPlan, padded_inputs
from workflows.errors import RanklineError
from workflows.tensor_names import NNZS, VALUES


class TritonPythonModel(BatchingModel):
    """A plan in Triton."""

    FRAMEWORK = "the workflow"

    def load(self, model: ServedModel) -> Run:
        """Map the plan into memory."""
        try:
            plan = TransformPlan.load(model.version / "plan")
        except RanklineError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        _check(model.version, "inputs", model.inputs, plan.inputs)
        _check(model.version, "outputs", model.outputs, [column.spec for column in plan.columns])

        def run(*arrays: Array) -> list[Array]:
            given = dict(zip((tensor.name for tensor in model.inputs), arrays, strict=True))
            made = padded_inputs(plan.run({spec.name: _column(spec, given) for spec in plan.inputs}))
            return [made[tensor.name] for tensor in model.outputs]

        return run


def _check(version: Path, side: str, declared: Sequence[Tensor], specs: Sequence[TensorSpec]) -> None:
    names = {tensor.name for tensor in declared}
    expected = {name for spec in specs for name in _tensor_names(spec)}
    if names != expected:
        raise pb_utils.TritonModelException(
            f"config.pbtxt has {side} {sorted(names)}, {version / 'plan'} has {sorted(expected)}. Export again."
        )


def _tensor_names(spec: TensorSpec) -> tuple[str, ...]:
    return (spec.name,) if spec.width is None else (spec.name + VALUES, spec.name + NNZS)


def _column(spec: TensorSpec, tensors: Mapping[str, Array]) -> Array | Padded:
    """Tensors [num_rows, 1], and [num_rows, width] of lists, as the plan takes them."""
    if spec.width is None:
        return tensors[spec.name].reshape(-1)
    return Padded(tensors[spec.name + VALUES], tensors[spec.name + NNZS].reshape(-1).astype(np.int32, copy=False))
