"""Split a merlin-systems graph, `TransformWorkflow(…) >> PredictTensorflow(…)`, into workflow and models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rankline.serving.engines.merlin_operators import Ensemble, TransformWorkflow, postorder_iter_nodes
from rankline.workflows.core.errors import ExportError
from rankline.workflows.nvt.compat import nvt

_HOLD_NOTHING = ("SelectionOp", "ConcatColumns")
_TENSORFLOW, _PYTORCH = "PredictTensorflow", "PredictPyTorch"


@dataclass(frozen=True, kw_only=True)
class Parts:
    workflow: nvt.Workflow | None
    models: tuple[Path, ...]


def parts_of(graph: Any, sample: pa.Table, directory: Path) -> Parts:
    node = graph.graph.output_node if isinstance(graph, Ensemble) else graph
    operators = [found.op for found in postorder_iter_nodes(node)]
    workflows = [op for op in operators if isinstance(op, TransformWorkflow)]
    models = [op for op in operators if type(op).__name__ in (_TENSORFLOW, _PYTORCH)]
    known = {id(op) for op in (*workflows, *models)}
    others = [type(op).__name__ for op in operators if id(op) not in known]
    if foreign := sorted({name for name in others if name not in _HOLD_NOTHING}):
        raise ExportError(
            f"the graph contains {foreign}, expected only TransformWorkflow, {_TENSORFLOW} and {_PYTORCH}."
        )
    if len(workflows) > 1:
        raise ExportError(
            f"the graph contains {len(workflows)} workflows, expected one. Fit a single workflow instead: "
            "nvt.Workflow(first.output_node + second.output_node)."
        )
    if not models:
        raise ExportError(f"the graph contains no model, expected {_TENSORFLOW} or {_PYTORCH}.")
    workflow = workflows[0].workflow if workflows else None
    saved = tuple(_saved(op, place, workflow, sample, directory) for place, op in enumerate(models))
    return Parts(workflow=workflow, models=saved)


def _saved(op: Any, place: int, workflow: nvt.Workflow | None, sample: pa.Table, directory: Path) -> Path:
    """Return the path of an operator's model, saving the model first if it is only in memory."""
    if type(op).__name__ == _PYTORCH:
        return _traced(op.model, workflow, sample, directory / f"{place}.pt")
    if op.path is not None:
        return Path(op.path)
    import tensorflow as tf

    path = directory / str(place)
    tf.saved_model.save(op.model, str(path))
    return path


def _traced(model: Any, workflow: nvt.Workflow | None, sample: pa.Table, path: Path) -> Path:
    """Trace a module that takes a dict of columns of shape [rows], and save it as TorchScript, like merlin-systems."""
    import torch

    from rankline.serving.importers.torch_script import quiet_torch

    frame = sample.slice(0, 8).to_pandas()
    encoded = frame if workflow is None else workflow.transform(frame)
    example = {name: torch.from_numpy(encoded[name].to_numpy()) for name in encoded}
    with quiet_torch(), torch.no_grad():
        traced = torch.jit.trace(model.eval(), (example,), strict=False, check_trace=False)  # type: ignore[no-untyped-call]
    traced.save(str(path))
    return path
