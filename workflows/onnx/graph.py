"""Construction of ONNX models node by node."""

from collections.abc import Collection
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

from rankline.workflows.core.errors import ExportError

TREES_DOMAIN = "ai.onnx.ml"
_OPSET, _TREES_OPSET, _IR_VERSION = 17, 3, 8  # supported by ONNX Runtime 1.13 and later
_MAX_BYTES = 2**31 - 1  # limit of a protobuf message


class Graph:
    """A builder of ONNX graphs whose generated tensor names never clash with the given input and output `names`."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._prefix = "/"
        while any(name.startswith(self._prefix) for name in names):
            self._prefix += "/"
        self.inner = f"{self._prefix}model/"
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: list[Any] = []
        self._included: ModelProto | None = None

    def add(self, kind: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any) -> str:
        output = output or f"{self._prefix}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"{self._prefix}constant/{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def take(self, name: str, dtype: int, width: int | str) -> str:
        """Add a model input of shape [rows, width] and return its name; `dtype` is a `TensorProto` type."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, ["rows", width]))
        return name

    def give(self, name: str, width: int) -> None:
        """Declare a node output as a float32 model output of shape [rows, width]."""
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width]))

    def include(self, model: ModelProto) -> None:
        """Add all nodes of another model. Can be called only once per graph.

        Its opsets then apply to the whole graph. Earlier nodes must compute its inputs."""
        self._included = ModelProto()
        self._included.CopyFrom(model)
        _put_before_names(self.inner, self._included.graph)
        self._nodes += self._included.graph.node

    def model(self, name: str) -> ModelProto:
        made = helper.make_model(
            helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._constants),
            opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(TREES_DOMAIN, _TREES_OPSET)],
            ir_version=_IR_VERSION,
            producer_name="rankline",
        )
        if self._included is not None:
            _add_weights(made, self._included)
        checker.check_model(made, full_check=self._included is None)  # the checker rejects ONNX Runtime's own operators
        return made


def _put_before_names(prefix: str, graph: Any) -> None:
    """Prefix all tensor names in a graph and its subgraphs. onnx.compose misses outer names in branches and loops."""
    sparse = [part.values for part in graph.sparse_initializer]
    for tensor in (*graph.input, *graph.output, *graph.value_info, *graph.initializer, *sparse):
        tensor.name = prefix + tensor.name
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name and prefix + name for name in names]  # "" marks an omitted tensor
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _put_before_names(prefix, inner)


def _add_weights(made: ModelProto, included: ModelProto) -> None:
    made.graph.initializer.extend(included.graph.initializer)
    made.graph.sparse_initializer.extend(included.graph.sparse_initializer)
    made.ir_version = max(included.ir_version, _IR_VERSION)
    del made.opset_import[:]
    made.opset_import.extend(included.opset_import)


def serialized(graph: Graph, name: str) -> bytes:
    """Serialize the graph as an ONNX model. Identical graphs produce identical bytes.

    Raises:
        ExportError: the model exceeds the size limit of a file.
    """
    try:
        content: bytes = graph.model(name).SerializeToString(deterministic=True)
    except ValueError as error:  # raised by protobuf and onnx if a message is too large
        raise ExportError(f"the {name} cannot be written as ONNX: {' '.join(str(error).split())[:200]}.") from None
    if len(content) > _MAX_BYTES:
        raise ExportError(f"the {name} needs {len(content) / 2**30:.1f} GiB, but an ONNX file is limited to 2 GiB.")
    return content
