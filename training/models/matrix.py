"""All features of a row in one float32 matrix, in training and in an ONNX graph, for models that need all rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankline.training.data.loader.columns import Column
from rankline.training.models.config import check_numbers
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.tensor_names import NNZS, VALUES

if TYPE_CHECKING:
    from rankline.workflows.onnx.graph import Graph

Matrix = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Block:
    """The matrix columns of one feature: its value or, for a list, the counts of its most frequent ids."""

    feature: Feature
    width: int

    def columns(self, column: Column) -> Matrix:
        if not isinstance(column, Ragged):
            return column.reshape(len(column), -1).astype(np.float32)
        rows = np.repeat(np.arange(len(column.offsets) - 1), column.lengths)
        is_told = column.values <= self.width
        places = rows[is_told] * (self.width + 1) + column.values[is_told]
        counts = np.bincount(places, minlength=(len(column.offsets) - 1) * (self.width + 1))
        return counts.reshape(-1, self.width + 1)[:, 1:].astype(np.float32)

    def add_to(self, graph: "Graph") -> str:
        """Add the feature's inputs to a graph and return the name of the float32 tensor of its columns."""
        from onnx import TensorProto

        name = self.feature.name
        if not self.feature.is_list:
            is_number = self.feature.cardinality is None
            taken = graph.take(name, TensorProto.FLOAT if is_number else TensorProto.INT64, 1)
            return taken if is_number else graph.add("Cast", taken, to=TensorProto.FLOAT)
        values = graph.take(name + VALUES, TensorProto.INT64, f"width of {name}")
        nnzs = graph.add("Cast", graph.take(name + NNZS, TensorProto.INT32, 1), to=TensorProto.INT64)
        width = graph.add("Gather", graph.add("Shape", values), graph.constant(1))
        places = graph.add("Range", graph.constant(0), width, graph.constant(1))  # (W,)
        # Padding counts as an id that is not distinguished.
        depth = self.width + 1
        ids = graph.add("Where", graph.add("Less", places, nnzs), values, graph.constant(depth))
        hot = graph.add("OneHot", ids, graph.constant(depth), graph.constant([0, 1], np.float32), axis=-1)
        counts = graph.add("ReduceSum", hot, graph.constant([1]), keepdims=0)
        return graph.add("Slice", counts, graph.constant([1]), graph.constant([depth]), graph.constant([1]))


class FeatureMatrix:
    """The features of a spec as the columns of a matrix (N, width). Ids up to 2**24 are exact.

    Args:
        list_ids: number of the most frequent ids of a list to count.
    """

    def __init__(self, spec: FeatureSpec, list_ids: int) -> None:
        check_numbers(spec.continuous)
        self._blocks = tuple(
            Block(feature=f, width=min(f.embedding_shape[0] - 1, list_ids) if f.is_list else 1)
            for f in (*spec.categorical, *spec.continuous)
        )
        *self._begins, self.width = accumulate((block.width for block in self._blocks), initial=0)

    @property
    def id_columns(self) -> Mapping[int, int]:
        """The matrix columns that hold ids, each with the number of ids of its feature."""
        return {
            begin: block.feature.embedding_shape[0]
            for begin, block in zip(self._begins, self._blocks, strict=True)
            if block.feature.cardinality is not None and not block.feature.is_list
        }

    def of(self, inputs: Mapping[str, Any]) -> Matrix:
        return np.concatenate([block.columns(inputs[block.feature.name]) for block in self._blocks], axis=1)

    def add_to(self, graph: "Graph") -> str:
        """Add the inputs of all features to a graph and return the name of the matrix."""
        return concat(graph, [block.add_to(graph) for block in self._blocks])


def add_places(graph: "Graph", matrix: str, columns: Any, begins: Any) -> str:
    """Look up the ids in some columns of a matrix, add where the rows of each column begin in a table of all columns,
    and return the name of the sums, int64 (N, columns).
    """
    from onnx import TensorProto

    ids = graph.add("Cast", graph.add("Gather", matrix, graph.constant(columns), axis=1), to=TensorProto.INT64)
    return graph.add("Add", ids, graph.constant(begins))


def concat(graph: "Graph", columns: Sequence[str]) -> str:
    return columns[0] if len(columns) == 1 else graph.add("Concat", *columns, axis=1)
