"""Convert a SavedModel's padded signature to ONNX with tf2onnx."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf2onnx
from onnx import ModelProto, TensorProto
from onnx.helper import tensor_dtype_to_np_dtype
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from rankline.serving.engines.tensorflow.allowed_operations import check_loaded
from rankline.serving.engines.tensorflow.session import quiet
from rankline.workflows.schema.model_artifact import ModelArtifact
from rankline.workflows.schema.tensor_names import PADDED_SIGNATURE, tensor_name

_COMBINERS = {
    "SparseSegmentSumWithNumSegments": None,
    "SparseSegmentMeanWithNumSegments": "Identity",
    "SparseSegmentSqrtNWithNumSegments": "Sqrt",
}
"""Reduction of a list → function of the list's length by which the sum is divided; None for no division."""


def to_onnx(trained: ModelArtifact, opset: int) -> ModelProto:
    check_loaded(trained.model_path)
    with quiet("tensorflow", "tf2onnx"):
        loaded = tf.saved_model.load(str(trained.model_path))  # keeps the variables alive
        signature = loaded.signatures[PADDED_SIGNATURE]
        frozen = convert_variables_to_constants_v2(signature, lower_control_flow=False, aggressive_inlining=True)
        # TensorFlow's own names are lowercased and "Identity".
        arguments = signature.structured_input_signature[1]
        inputs = {f"{spec.name}:0": tensor_name(argument) for argument, spec in arguments.items()}
        outputs = {t.name: name for name, t in zip(sorted(signature.structured_outputs), frozen.outputs, strict=True)}
        model: ModelProto = tf2onnx.convert.from_graph_def(
            frozen.graph.as_graph_def(add_shapes=True),
            input_names=list(inputs),
            output_names=list(outputs),
            tensors_to_rename={**inputs, **outputs},
            opset=opset,
            custom_rewriter=[_combine_padded],
        )[0]
    return model


def _combine_padded(graph: Any, nodes: Sequence[Any]) -> Any:
    """Rewrite the nodes that combine the embeddings of a list as a matrix product.

    Our signatures take the values out of the padding and combine them per segment, which ONNX has no operator for.
    tf2onnx would sort the values into a padding again, and an adding `ScatterND`, the simplest solution, returns
    different sums on each run with several threads (onnxruntime#18048, still present in 1.31).
    """
    for node in list(nodes):
        if node.type in _COMBINERS and (lists := _lists_of(node)):
            _replace(graph, node, *lists)
    return graph.get_nodes()


def _lists_of(node: Any) -> tuple[str, str, str] | None:
    """Return the embedding table, padded ids of shape [N, W] and mask that a segment reduction reads, or None if its
    inputs have another form.

    The reduction either looks the ids up itself, or takes all values in the order in which a gather looked them up.
    """
    table, values, rows, _ = node.inputs
    if values.type == "Range" and table.type == "GatherV2" and _is_from_zero(values):
        table, values = table.inputs[:2]
    if values.type != "GatherNd" or rows.type != "StridedSlice":
        return None
    places = values.inputs[1]
    is_first_column = list(rows.inputs[1].get_tensor_value()) == [0, 0] and [
        rows.get_attr_int(name) for name in ("begin_mask", "end_mask", "shrink_axis_mask")
    ] == [1, 1, 2]
    if places.type != "Where" or rows.inputs[0] is not places or not is_first_column:
        return None
    return table.output[0], values.input[0], places.input[0]


def _is_from_zero(counted: Any) -> bool:
    start, _, step = counted.inputs
    return [end.get_tensor_value() for end in (start, step) if end.is_const()] == [0, 1]


def _replace(graph: Any, node: Any, table: str, padded: str, mask: str) -> None:
    """Replace a segment reduction with a matrix product of weights and padded embeddings of shape [N, W, dimension].
    The weights of padding are zero.
    """

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        return str(graph.make_node(kind, inputs, attr=attributes).output[0])

    def constant(value: Any, dtype: Any = np.int64) -> str:
        return str(graph.make_const(tf2onnx.utils.make_name("constant"), np.array(value, dtype)).output[0])

    ids = add("Where", mask, padded, constant(0, tensor_dtype_to_np_dtype(graph.get_dtype(padded))))
    weights = add("Unsqueeze", add("Cast", mask, to=TensorProto.FLOAT), constant([1]))  # [N, 1, W]
    if (root := _COMBINERS[node.type]) is not None:
        length = add("ReduceSum", weights, constant([2]), keepdims=1)
        weights = add("Div", weights, add(root, add("Max", length, constant(1.0, np.float32))))
    combined = add("MatMul", weights, add("Gather", table, ids))
    shapes, dtypes, outputs = node.output_shapes, node.output_dtypes, node.output
    graph.remove_node(node.name)
    graph.make_node("Squeeze", [combined, constant([1])], outputs=outputs, shapes=shapes, dtypes=dtypes)
