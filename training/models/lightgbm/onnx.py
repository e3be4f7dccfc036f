"""Conversion of forests to an ONNX model with the padded inputs that all served models use.

Rows take exactly LightGBM's branches: a float32 value is at most a float64 threshold exactly if it is at most the
largest float32 value below or equal to the threshold. Missing values take LightGBM's branch too.
"""

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from rankline.training.models.lightgbm.network import Block, Forests
from rankline.workflows.onnx.graph import TREES_DOMAIN, Graph
from rankline.workflows.onnx.lightgbm_text import read_forest
from rankline.workflows.onnx.trees import attributes
from rankline.workflows.schema.targets import BINARY, MULTICLASS, Head, output_names
from rankline.workflows.schema.tensor_names import NNZS, VALUES

_TRANSFORMS: dict[str, tuple[str, dict[str, Any]]] = {BINARY: ("Sigmoid", {}), MULTICLASS: ("Softmax", {"axis": 1})}
"""Functions from the sum of trees to probabilities; the sum itself is the score of a regression."""


def to_onnx(forests: Forests) -> ModelProto:
    """Convert forests to an ONNX model with one output per head, named by `output_names`."""
    graph = Graph()
    rows = graph.add("Concat", *(_features(graph, block) for block in forests.blocks), axis=1)
    for head, name, text in zip(forests.heads, output_names(forests.heads), forests.texts(), strict=True):
        _add_head(graph, rows, head, name, text)
    return graph.model("forests")


def _features(graph: Graph, block: Block) -> str:
    name = block.feature.name
    if not block.feature.is_list:
        is_number = block.feature.cardinality is None
        taken = graph.take(name, TensorProto.FLOAT if is_number else TensorProto.INT64, 1)
        return taken if is_number else graph.add("Cast", taken, to=TensorProto.FLOAT)
    values = graph.take(name + VALUES, TensorProto.INT64, f"width of {name}")
    nnzs = graph.add("Cast", graph.take(name + NNZS, TensorProto.INT32, 1), to=TensorProto.INT64)
    width = graph.add("Gather", graph.add("Shape", values), graph.constant(1))
    places = graph.add("Range", graph.constant(0), width, graph.constant(1))  # (W,)
    # Padding counts as an id that is not distinguished.
    depth = block.width + 1
    ids = graph.add("Where", graph.add("Less", places, nnzs), values, graph.constant(depth))
    hot = graph.add("OneHot", ids, graph.constant(depth), graph.constant([0, 1], np.float32), axis=-1)
    counts = graph.add("ReduceSum", hot, graph.constant([1]), keepdims=0)
    return graph.add("Slice", counts, graph.constant([1]), graph.constant([depth]), graph.constant([1]))


def _add_head(graph: Graph, rows: str, head: Head, name: str, text: str) -> None:
    forest = read_forest(text, f"the forest of {head.column!r}")
    trees = {"n_targets": head.width, "post_transform": "NONE", "aggregate_function": "SUM"} | attributes(forest.trees)
    last = _TRANSFORMS.get(head.task)
    total = graph.add("TreeEnsembleRegressor", rows, domain=TREES_DOMAIN, output="" if last else name, **trees)
    if last:
        kind, options = last
        graph.add(kind, total, output=name, **options)
    graph.give(name, head.width)
