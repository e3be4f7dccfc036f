"""Building an ONNX model node by node."""

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

TREES_DOMAIN = "ai.onnx.ml"
_OPSET, _TREES_OPSET, _IR_VERSION = 17, 3, 8  # known to ONNX Runtime from 1.13 on


class Graph:
    """Nodes, and what they take and make, under numbered names."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: list[Any] = []

    def add(self, kind: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any) -> str:
        """A node; returns the name of what it makes."""
        output = output or f"/{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """A tensor; returns its name."""
        name = f"/constant/{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def take(self, name: str, dtype: int, width: int | str) -> str:
        """An input of the model, [rows, width] of a type of `TensorProto`; returns its name."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, ["rows", width]))
        return name

    def give(self, name: str, width: int) -> None:
        """Make what a node made an output of the model, float32 [rows, width]."""
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width]))

    def model(self, name: str) -> ModelProto:
        """The whole, checked."""
        made = helper.make_model(
            helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._constants),
            opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(TREES_DOMAIN, _TREES_OPSET)],
            ir_version=_IR_VERSION,
            producer_name="rankline",
        )
        checker.check_model(made, full_check=True)
        return made
