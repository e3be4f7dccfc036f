"""Forests as an ONNX model in the padded layout of all served models.

Branches are LightGBM's to the bit: a float32 is at most a float64 threshold exactly where it is at most the largest
float32 that is, and where a value is missing, the branch is the one that LightGBM would take.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

from training.models.lightgbm.network import Block, Forests
from workflows.heads import BINARY, MULTICLASS, Head, output_names
from workflows.tensor_names import NNZS, VALUES

_OPSET, _TREES_OPSET, _IR_VERSION = 17, 3, 8  # known to ONNX Runtime from 1.13 on
_TREES = "ai.onnx.ml"
_ZERO = np.float32(1e-35)  # kZeroThreshold in LightGBM's meta.h


def to_onnx(forests: Forests) -> ModelProto:
    """Convert; one output for each head, named by `workflows.heads.output_names`."""
    graph = _Graph()
    parts = [graph.features(block) for block in forests.blocks]
    rows = graph.add("Concat", *parts, axis=1)
    for head, name, booster in zip(forests.heads, output_names(forests.heads), forests.boosters, strict=True):
        _add_head(graph, rows, head, name, booster.dump_model())
    made = helper.make_model(
        helper.make_graph(graph.nodes, "forests", graph.inputs, graph.outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(_TREES, _TREES_OPSET)],
        ir_version=_IR_VERSION,
        producer_name="rankline",
    )
    checker.check_model(made, full_check=True)
    return made


class _Graph:
    """Nodes, and what they take and make, under numbered names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any) -> str:
        """A node; returns the name of what it makes."""
        output = output or f"/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"/constant/{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def take(self, name: str, dtype: int, width: int | str) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, ["rows", width]))
        return name

    def features(self, block: Block) -> str:
        """The columns of a feature, float32 (N, width)."""
        name = block.feature.name
        if not block.feature.is_list:
            is_number = block.feature.cardinality is None
            taken = self.take(name, TensorProto.FLOAT if is_number else TensorProto.INT64, 1)
            return taken if is_number else self.add("Cast", taken, to=TensorProto.FLOAT)
        values = self.take(name + VALUES, TensorProto.INT64, f"width of {name}")
        nnzs = self.add("Cast", self.take(name + NNZS, TensorProto.INT32, 1), to=TensorProto.INT64)
        width = self.add("Gather", self.add("Shape", values), self.constant(1))
        places = self.add("Range", self.constant(0), width, self.constant(1))  # (W,)
        # What is behind the end of a list counts as an id that is not told apart.
        depth = block.width + 1
        ids = self.add("Where", self.add("Less", places, nnzs), values, self.constant(depth))
        hot = self.add("OneHot", ids, self.constant(depth), self.constant([0, 1], np.float32), axis=-1)
        counts = self.add("ReduceSum", hot, self.constant([1]), keepdims=0)
        return self.add("Slice", counts, self.constant([1]), self.constant([depth]), self.constant([1]))


def _add_head(graph: _Graph, rows: str, head: Head, name: str, model: Mapping[str, Any]) -> None:
    """Trees, and what makes probabilities of their sum."""
    trees = {"n_targets": head.width, "post_transform": "NONE", "aggregate_function": "SUM"} | _trees(model)
    last: tuple[str, dict[str, Any]] | None = {BINARY: ("Sigmoid", {}), MULTICLASS: ("Softmax", {"axis": 1})}.get(
        head.task
    )
    total = graph.add("TreeEnsembleRegressor", rows, domain=_TREES, output="" if last else name, **trees)
    if last:
        kind, attributes = last
        graph.add(kind, total, output=name, **attributes)
    graph.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", head.width]))


def _trees(model: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The attributes of a TreeEnsembleRegressor, from what `Booster.dump_model` says."""
    nodes: dict[str, list[Any]] = {f"nodes_{name}": [] for name in _NODE}
    leaves: dict[str, list[Any]] = {f"target_{name}": [] for name in ("ids", "nodeids", "treeids", "weights")}
    for number, tree in enumerate(model["tree_info"]):
        for node, children in _numbered(tree["tree_structure"]):
            for name, value in zip(_NODE, _node(node, children, number), strict=True):
                nodes[f"nodes_{name}"].append(value)
            if "leaf_value" in node:
                values = (number % model["num_tree_per_iteration"], children[0], number, float(node["leaf_value"]))
                for part, value in zip(leaves.values(), values, strict=True):
                    part.append(value)
    return nodes | leaves


_NODE = (
    "nodeids", "treeids", "featureids", "modes", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true",
)  # fmt: skip
"""What a TreeEnsembleRegressor says of each node."""


def _numbered(tree: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], tuple[int, int, int]]]:
    """Each node with its number and those of its children, counted from the root in the order of their depth."""
    waiting, count = [tree], 1
    for number, node in enumerate(waiting):
        if "leaf_value" in node:
            yield node, (number, 0, 0)
            continue
        waiting += [node["left_child"], node["right_child"]]
        yield node, (number, count, count + 1)
        count += 2


def _node(node: Mapping[str, Any], numbers: tuple[int, int, int], tree: int) -> tuple[Any, ...]:
    """The values of `_NODE`, of a node of a tree with its own number and those of its children."""
    own, left, right = numbers
    if "leaf_value" in node:
        return own, tree, 0, "LEAF", 0.0, 0, 0, 0
    threshold = float(node["threshold"])
    # Where training lacked no value, LightGBM reads NaN as 0.
    goes_left = node["default_left"] if node["missing_type"] == "NaN" else threshold >= 0
    return own, tree, node["split_feature"], "BRANCH_LEQ", _threshold32(threshold), left, right, int(goes_left)


def _threshold32(value: float) -> float:
    """The largest float32 that LightGBM finds to be at most `value`; to it, 0 is all that is within `_ZERO` of 0."""
    if abs(value) <= _ZERO:
        return float(_ZERO if value >= 0 else np.nextafter(-_ZERO, np.float32(-math.inf)))
    nearest = np.float32(min(value, float(np.finfo(np.float32).max)))
    return float(nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-math.inf)))
