"""The one door to merlin-systems.

Its operators for models import their framework, so an engine asks for its own by `merlin_operator`.
"""

from importlib import import_module
from typing import Any

from workflows.upstream import importing_merlin

with importing_merlin():
    from merlin.dag import postorder_iter_nodes
    from merlin.dag.runtime import Runtime
    from merlin.schema import ColumnSchema, Schema
    from merlin.systems.dag import Ensemble
    from merlin.systems.dag.ops.workflow import TransformWorkflow


def merlin_operator(module: str, name: str) -> Any:
    """An operator of `merlin.systems.dag.ops`; imports the framework that it is for."""
    with importing_merlin():
        return getattr(import_module(f"merlin.systems.dag.ops.{module}"), name)


__all__ = [
    "ColumnSchema", "Ensemble", "Runtime", "Schema", "TransformWorkflow", "merlin_operator", "postorder_iter_nodes",
]  # fmt: skip
