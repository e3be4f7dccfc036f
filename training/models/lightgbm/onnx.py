"""Conversion of forests to an ONNX model with the padded inputs that all served models use.

Rows take exactly LightGBM's branches: a float32 value is at most a float64 threshold exactly if it is at most the
largest float32 value below or equal to the threshold. Missing values take LightGBM's branch too.
"""

from typing import Any

from onnx import ModelProto

from rankline.training.models.lightgbm.network import Forests
from rankline.workflows.onnx.graph import TREES_DOMAIN, Graph
from rankline.workflows.onnx.lightgbm_text import read_forest
from rankline.workflows.onnx.trees import attributes
from rankline.workflows.schema.targets import BINARY, MULTICLASS, Head, output_names

_TRANSFORMS: dict[str, tuple[str, dict[str, Any]]] = {BINARY: ("Sigmoid", {}), MULTICLASS: ("Softmax", {"axis": 1})}
"""Functions from the sum of trees to probabilities; the sum itself is the score of a regression."""


def to_onnx(forests: Forests) -> ModelProto:
    """Convert forests to an ONNX model with one output per head, named by `output_names`."""
    graph = Graph()
    rows = forests.features.add_to(graph)
    for head, name, text in zip(forests.heads, output_names(forests.heads), forests.texts(), strict=True):
        _add_head(graph, rows, head, name, text)
    return graph.model("forests")


def _add_head(graph: Graph, rows: str, head: Head, name: str, text: str) -> None:
    forest = read_forest(text, f"the forest of {head.column!r}")
    trees = {"n_targets": head.width, "post_transform": "NONE", "aggregate_function": "SUM"} | attributes(forest.trees)
    last = _TRANSFORMS.get(head.task)
    total = graph.add("TreeEnsembleRegressor", rows, domain=TREES_DOMAIN, output="" if last else name, **trees)
    if last:
        kind, options = last
        graph.add(kind, total, output=name, **options)
    graph.give(name, head.width)
