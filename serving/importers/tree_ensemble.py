"""Convert tree ensembles to ONNX in the padded layout of all served models."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankline.serving.importers import ForeignModel
from rankline.serving.importers.input_binding import Input, InputBinding, dtypes_of
from rankline.workflows.core.errors import ExportError
from rankline.workflows.onnx.trees import Tree, attributes
from rankline.workflows.schema.model_artifact import ONNX
from rankline.workflows.schema.targets import Head, output_names

OUTPUT = "score"
"""Name of a forest's only output."""

IDENTITY, SIGMOID, SOFTMAX, EXP, SOFTPLUS, SIGNED_SQUARE = "", "Sigmoid", "Softmax", "Exp", "Softplus", "SignedSquare"
_OPTIONS: dict[str, dict[str, Any]] = {SOFTMAX: {"axis": 1}}
_INPUT = "[features]"
"""Key of the matrix, which the files do not name. A column of that name would be taken for it, so it has brackets,
which both frameworks refuse in the names of features.
"""


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Decision trees, and the conversion of their summed outputs to scores.

    Attributes:
        transform: function applied to the sum, such as `SIGMOID`.
        scale: factor of the sum before the transform.
        base: constant added to each score; empty for zero.
        missing: value that means missing, in addition to NaN.
        dtype: NumPy dtype name of the features, as the framework compares them with thresholds.
    """

    trees: Sequence[Tree]
    width: int
    transform: str = IDENTITY
    scale: float = 1.0
    base: tuple[float, ...] = ()
    missing: float = math.nan
    dtype: str = "float32"


class ForestModel(ForeignModel):
    """A forest that takes one matrix of all features. Columns match by name, or by position if `features` is empty."""

    format = ONNX

    def __init__(self, forest: Forest, features: Sequence[str], numbered: Sequence[str]) -> None:
        self._forest = forest
        shape, names = (None, len(numbered)), {"features": tuple(features), "numbered": tuple(numbered)}
        self.inputs = (Input(name=_INPUT, dtype=forest.dtype, shape=shape, **names),)

    def write(self, feeds: Sequence[InputBinding], heads: Sequence[Head], target: Path) -> None:
        _write(self._forest, feeds, heads, target)


def matrix_of(arrays: Mapping[str, Any]) -> Any:
    return arrays[_INPUT]


def _write(forest: Forest, feeds: Sequence[InputBinding], heads: Sequence[Head], target: Path) -> None:
    from onnx import TensorProto, helper

    from rankline.workflows.onnx.graph import TREES_DOMAIN, Graph, serialized

    [head], [name] = heads, output_names(heads)
    if head.width != forest.width:
        raise ExportError(
            f"the forest returns {forest.width} scores per row, but {head.column!r} expects {head.width}."
        )
    graph, compared = Graph([*dtypes_of(feeds), name]), np.dtype(forest.dtype)
    columns = [
        graph.add(
            "Cast",
            graph.take(column, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), 1),
            to=helper.np_dtype_to_tensor_dtype(compared),
        )
        for column, dtype in dtypes_of(feeds).items()
    ]
    matrix = graph.add("Concat", *columns, axis=1)
    if not math.isnan(forest.missing):
        missing, nan = (graph.constant(value, compared) for value in (forest.missing, math.nan))
        matrix = graph.add("Where", graph.add("Equal", matrix, missing), nan, matrix)
    rows = graph.add("Cast", matrix, to=TensorProto.DOUBLE)
    is_last = forest.transform == IDENTITY
    total = graph.add(
        "TreeEnsembleRegressor", rows, domain=TREES_DOMAIN, output=name if is_last else "", **_attributes(forest)
    )
    if forest.transform == SIGNED_SQUARE:
        graph.add("Mul", total, graph.add("Abs", total), output=name)
    elif not is_last:
        graph.add(forest.transform, total, output=name, **_OPTIONS.get(forest.transform, {}))
    graph.give(name, head.width)
    target.write_bytes(serialized(graph, "forest"))


def _attributes(forest: Forest) -> dict[str, Any]:
    from onnx import numpy_helper

    said: dict[str, Any] = attributes(forest.trees)
    numbers = {
        "nodes_values": np.array(said.pop("nodes_values")),
        "target_weights": forest.scale * np.array(said.pop("target_weights")),
    }
    if forest.base:
        numbers["base_values"] = forest.scale * np.array(forest.base)
    tensors = {f"{name}_as_tensor": numpy_helper.from_array(values) for name, values in numbers.items()}
    return said | tensors | {"n_targets": forest.width}
