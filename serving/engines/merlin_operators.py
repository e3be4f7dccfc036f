"""The only module that imports merlin-systems.

Its model operators import their framework, so each engine requests its operator through `merlin_operator`. Merlin's
export runtime imports all frameworks, XGBoost, LightGBM and scikit-learn, which takes seconds. Since Rankline exports
with its own runtime, Merlin's is imported only on use.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from rankline.workflows.core.optional_packages import stand_ins
from rankline.workflows.nvt.compat import importing_merlin

_TRITON_RUNTIME = "merlin.systems.dag.runtimes.triton"


def _triton_runtime() -> Any:
    with importing_merlin():
        return import_module(_TRITON_RUNTIME).TritonExecutorRuntime()


with importing_merlin():
    from merlin.dag import BaseOperator, postorder_iter_nodes
    from merlin.dag.runtime import Runtime
    from merlin.schema import ColumnSchema, Schema

    with stand_ins({_TRITON_RUNTIME: {"TritonExecutorRuntime": _triton_runtime}}):
        from merlin.systems.dag import Ensemble
        from merlin.systems.dag.ops.workflow import TransformWorkflow


def merlin_operator(module: str, name: str) -> Any:
    """Return an operator of `merlin.systems.dag.ops`, importing its framework."""
    with importing_merlin():
        return getattr(import_module(f"merlin.systems.dag.ops.{module}"), name)


class Predict(BaseOperator):  # type: ignore[misc]  # merlin has no annotations
    """A placeholder operator for models without a usable operator in merlin-systems."""

    def __init__(self, outputs: Sequence[str]) -> None:
        super().__init__()
        self._outputs = Schema([ColumnSchema(name, dtype=np.float32) for name in outputs])

    def compute_output_schema(self, *_: Any, **__: Any) -> Schema:
        return self._outputs


__all__ = [
    "ColumnSchema", "Ensemble", "Predict", "Runtime", "Schema", "TransformWorkflow", "merlin_operator",
    "postorder_iter_nodes",
]  # fmt: skip
