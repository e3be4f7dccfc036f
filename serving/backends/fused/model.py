"""Triton backend `fused`: runs a compiled workflow and a model in one process, without handing tensors over in between.

The version directory holds both, `plan` and what the model's own backend looks for. A request of one row spends most of
its time on the way to a process and back, so one step in place of two nearly halves its latency; two steps can work on
two requests side by side.

Parameters read from `config.pbtxt`, beside those of the backend `nvtabular` and of the model's own:

    MODEL_BACKEND   the backend folder that runs the model
"""

from dataclasses import replace

import triton_python_backend_utils as pb_utils

from serving.backends.batching import Array, BatchingModel, Run, ServedModel
from serving.backends.nvtabular import model as nvtabular
from serving.engines import engine_of_backend
from workflows.errors import ConfigError, RanklineError


class TritonPythonModel(BatchingModel):
    """A plan and a model in Triton."""

    FRAMEWORK = "the ensemble"

    def load(self, model: ServedModel) -> Run:
        """Load both, and have the one feed the other."""
        plan = nvtabular.open_plan(model.version)
        between = tuple(tensor for column in plan.columns for tensor in column.spec.tensors)
        try:
            engine = engine_of_backend(model.parameters.get("MODEL_BACKEND", ""))
        except ConfigError as error:
            raise pb_utils.TritonModelException(f"parameter MODEL_BACKEND: {error}") from error
        self._engine: BatchingModel = engine.triton_model()
        transform = nvtabular.make_run(plan, replace(model, outputs=between))
        predict = self._engine.load(replace(model, inputs=between))

        def run(*arrays: Array | None) -> list[Array]:
            return list(predict(*transform(*arrays)))

        return run

    def explain(self, error: Exception) -> str:
        """As the one that failed would say it."""
        return super().explain(error) if isinstance(error, RanklineError) else self._engine.explain(error)
