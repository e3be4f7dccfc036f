"""The one door to merlin-systems.

Importing merlin-systems sets PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python for this process and every child, which
makes protobuf slow in a server started later. The variable is put back as it was.

Its operators for models import their framework, so an engine asks for its own by `merlin_operator`.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from workflows.upstream import quiet_nvtabular

_VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"


@contextmanager
def _importing() -> Iterator[None]:
    before = os.environ.get(_VARIABLE)
    try:
        with quiet_nvtabular(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before


with _importing():
    from merlin.dag import postorder_iter_nodes
    from merlin.dag.runtime import Runtime
    from merlin.schema import ColumnSchema, Schema
    from merlin.systems.dag import Ensemble
    from merlin.systems.dag.ops.workflow import TransformWorkflow


def merlin_operator(module: str, name: str) -> Any:
    """An operator of `merlin.systems.dag.ops`; imports the framework that it is for."""
    with _importing():
        return getattr(import_module(f"merlin.systems.dag.ops.{module}"), name)


__all__ = [
    "ColumnSchema", "Ensemble", "Runtime", "Schema", "TransformWorkflow", "merlin_operator", "postorder_iter_nodes",
]  # fmt: skip
