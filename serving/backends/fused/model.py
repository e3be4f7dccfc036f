"""Triton backend `fused`: runs a compiled workflow and a model in one process, without handing tensors over in between.

The version directory holds both, `plan` and what the model's own backend looks for. A request of one row spends most of
its time on the way to a process and back, so one step in place of two nearly halves its latency; two steps can work on
two requests side by side.

Parameters read from `config.pbtxt`, beside those of the backend `nvtabular` and of the model's own:

    MODEL_BACKEND   the backend folder that runs the model
"""

from dataclasses import replace
from importlib import import_module

import numpy as np
import triton_python_backend_utils as pb_utils

from serving.backends.batching import Array, BatchingModel, Run, ServedModel, Tensor
from serving.backends.nvtabular import model as nvtabular
from serving.plan import TensorSpec, TransformPlan
from workflows.errors import RanklineError
from workflows.tensor_names import NNZS, VALUES


class TritonPythonModel(BatchingModel):
    """A plan and a model in Triton."""

    FRAMEWORK = "the ensemble"

    def load(self, model: ServedModel) -> Run:
        """Load both, and have the one feed the other."""
        try:
            columns = TransformPlan.load(model.version / "plan").columns
        except RanklineError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        between = tuple(tensor for column in columns for tensor in _tensors(column.spec))
        try:
            backend = import_module(f"serving.backends.{model.parameters['MODEL_BACKEND']}.model")
        except (KeyError, ModuleNotFoundError) as error:
            raise pb_utils.TritonModelException(f"parameter MODEL_BACKEND: {error}. Export again.") from error
        self._engine: BatchingModel = backend.TritonPythonModel()
        transform = nvtabular.TritonPythonModel().load(replace(model, outputs=between))
        predict = self._engine.load(replace(model, inputs=between))

        def run(*arrays: Array | None) -> list[Array]:
            return list(predict(*transform(*arrays)))

        return run

    def explain(self, error: Exception) -> str:
        """As the one that failed would say it."""
        return super().explain(error) if isinstance(error, RanklineError) else self._engine.explain(error)


def _tensors(spec: TensorSpec) -> tuple[Tensor, ...]:
    """What the model takes of a column."""
    if spec.width is None:
        return (Tensor(name=spec.name, dtype=spec.numpy_dtype, dims=(1,)),)
    values = Tensor(name=spec.name + VALUES, dtype=spec.numpy_dtype, dims=(spec.width,))
    return values, Tensor(name=spec.name + NNZS, dtype=np.dtype(np.int32), dims=(1,))
