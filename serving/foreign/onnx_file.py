"""ONNX files of any converter: PyTorch's, tf2onnx, skl2onnx, onnxmltools.

Nodes are put in front that make the model's inputs of padded columns, and behind it that make its outputs float32.
What a converter of scikit-learn adds for Python, a map of class names to probabilities for each row, is left out: the
probabilities are a tensor before, and the names become those of its columns.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving.foreign.inputs import MATRIX, PADDED, Feed, Input, dtypes_of
from workflows.errors import ArtifactError, ExportError
from workflows.extras import require
from workflows.heads import Head, output_names
from workflows.tensor_names import NNZS, OFFSETS, VALUES
from workflows.trained import ONNX

_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
_INNER = "model/"  # before the names of what is in the file, so that columns may have the same
_MAX_BYTES = 2**31 - 1  # of a protobuf message
_FIRST_OPSET = 13  # from which on axes are inputs


def takes(path: Path) -> bool:
    """A file called so: protobuf has no mark by which its messages can be told."""
    return path.is_file() and path.suffix.lower() == ".onnx"


class Model:
    """A `ForeignModel`.

    Args:
        path: of the file; weights in files beside it are read too.
    """

    format = ONNX

    def __init__(self, path: Path) -> None:
        for module in ("onnx", "onnxruntime"):
            require(module, feature=f"serving {path}", extra="onnx")
        import onnx

        try:
            self._model = onnx.load(str(path))
            onnx.checker.check_model(self._model)
        except Exception as error:  # of protobuf and of onnx, without a common base
            raise ArtifactError(f"{path} cannot be read as ONNX: {_line(error)}. Convert the model again.") from None
        if foreign := sorted({node.domain for node in self._model.graph.node} - _DOMAINS):
            raise ArtifactError(f"{path} has operators of {foreign}, expected those of ONNX and ONNX Runtime.")
        self._classes = _without_maps(self._model)
        self._session = self._open(path)
        given = {tensor.name for tensor in self._model.graph.initializer}  # of old files, which name them as inputs too
        graph = self._model.graph
        self.inputs = tuple(_input(path, tensor) for tensor in graph.input if tensor.name not in given)

    def _open(self, path: Path) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            return onnxruntime.InferenceSession(
                self._model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # of ONNX Runtime, likewise
            versions = {entry.domain or "ai.onnx": entry.version for entry in self._model.opset_import}
            raise ArtifactError(
                f"{path}, of opset {versions}, cannot be run by ONNX Runtime {onnxruntime.__version__}: "
                f"{_line(error)}. Convert the model to an older opset, or install a newer onnxruntime."
            ) from None

    def settled(self, feeds: tuple[Feed, ...], rows: pd.DataFrame) -> tuple[Feed, ...]:  # noqa: ARG002
        """A graph says itself what it takes."""
        return feeds

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        names = [tensor.name for tensor in self._session.get_outputs()]
        try:
            return dict(zip(names, self._session.run(names, dict(arrays)), strict=True))
        except Exception as error:  # of ONNX Runtime, likewise
            raise ExportError(f"the ONNX model cannot run the sample: {_line(error)}.") from None

    def classes(self, output: str) -> tuple[str, ...]:
        """Those of a classifier."""
        return self._classes.get(output, ())

    def write(self, feeds: Sequence[Feed], heads: Sequence[Head], target: Path) -> None:
        """Put nodes in front and behind."""
        content = _served(self._model, feeds, heads).SerializeToString(deterministic=True)
        if len(content) > _MAX_BYTES:
            raise ExportError(f"the model has {len(content) / 2**30:.1f} GiB, an ONNX file holds at most 2.")
        target.write_bytes(content)


def _without_maps(model: Any) -> dict[str, tuple[str, ...]]:
    """Make the outputs that are maps of each row tensors; returns the classes of each output that has some."""
    from onnx import TensorProto, helper

    graph, classes = model.graph, dict[str, tuple[str, ...]]()
    outputs = {tensor.name: tensor for tensor in graph.output}
    for node in [node for node in graph.node if node.op_type == "ZipMap" and node.output[0] in outputs]:
        name = node.output[0]
        words = [entry for attribute in node.attribute for entry in (*attribute.strings, *attribute.ints)]
        classes[name] = tuple(word.decode() if isinstance(word, bytes) else str(word) for word in words)
        made = helper.make_node("Identity", [node.input[0]], [name])
        place = list(graph.node).index(node)
        graph.node.remove(node)
        graph.node.insert(place, made)
        tensor = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, len(words)])
        outputs[name].CopyFrom(tensor)
    return classes


def _input(path: Path, tensor: Any) -> Input:
    from onnx.helper import tensor_dtype_to_np_dtype

    if not tensor.type.HasField("tensor_type"):
        raise ArtifactError(f"{path} takes {tensor.name!r}, which is no tensor.")
    kind = tensor.type.tensor_type
    dtype = "object" if kind.elem_type == 8 else tensor_dtype_to_np_dtype(kind.elem_type).name
    shape = None
    if kind.HasField("shape"):
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        if dims and dims[0] is not None:
            raise ArtifactError(
                f"{path} takes {tensor.name!r} of {dims[0]} rows, expected any number. Convert the model again, with "
                "the rows as a dynamic axis."
            )
        shape = tuple(dims)
    return Input(name=tensor.name, dtype=dtype, shape=shape)


def _served(model: Any, feeds: Sequence[Feed], heads: Sequence[Head]) -> Any:
    """The model between what makes its inputs and its outputs."""
    from onnx import TensorProto, compose, helper, version_converter

    version = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if version < _FIRST_OPSET:
        model = version_converter.convert_version(model, _FIRST_OPSET)
    inner = compose.add_prefix(model, prefix=_INNER)
    graph = _Graph()
    for feed in feeds:
        graph.feed(feed, _INNER + feed.input.name)
    graph.nodes += inner.graph.node
    for name, head in zip(output_names(heads), heads, strict=True):
        flat = graph.add("Reshape", _INNER + head.column, graph.constant([-1, head.width]))
        graph.add("Cast", flat, output=name, to=TensorProto.FLOAT)
        graph.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", head.width]))
    graph.declare(feeds)
    made = helper.make_model(
        helper.make_graph(
            graph.nodes, "model", graph.inputs, graph.outputs, [*graph.constants, *inner.graph.initializer]
        ),
        opset_imports=inner.opset_import,
        ir_version=inner.ir_version,
        producer_name="rankline",
        functions=inner.functions,
    )
    made.graph.sparse_initializer.extend(inner.graph.sparse_initializer)
    return made


class _Graph:
    """Nodes, and what they take and make, under numbered names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """A node; returns the name of what it makes."""
        from onnx import helper

        output = output or f"/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        from onnx import numpy_helper

        name = f"/constant/{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def declare(self, feeds: Sequence[Feed]) -> None:
        """The padded columns as inputs of the graph."""
        from onnx import helper

        lists = {feed.columns[0] for feed in feeds if feed.is_of_list}
        for name, dtype in dtypes_of(feeds).items():
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            if name in lists:
                self.inputs.append(helper.make_tensor_value_info(name + VALUES, kind, ["rows", f"width of {name}"]))
                self.inputs.append(
                    helper.make_tensor_value_info(
                        name + NNZS, helper.np_dtype_to_tensor_dtype(np.dtype(np.int32)), ["rows", 1]
                    )
                )
            else:
                self.inputs.append(helper.make_tensor_value_info(name, kind, ["rows", 1]))

    def feed(self, feed: Feed, target: str) -> None:
        """Nodes that make an input of the model from the padded columns."""
        from onnx import helper

        kind = helper.np_dtype_to_tensor_dtype(np.dtype(feed.dtype))
        if feed.kind == MATRIX:
            columns = [self.add("Cast", name, to=kind) for name in feed.columns]
            self.add("Concat", *columns, output=target, axis=1)
            return
        name = feed.columns[0]
        if feed.kind == PADDED:
            self.add("Cast", name + VALUES, output=target, to=kind)
            return
        made = {VALUES: self._values, NNZS: self._lengths, OFFSETS: self._offsets}.get(feed.kind, str)(name)
        shape = [-1, 1] if feed.rank == 2 else [-1]
        self.add("Cast", self.add("Reshape", made, self.constant(shape)), output=target, to=kind)

    def _lengths(self, name: str) -> str:
        return self.add("Cast", name + NNZS, to=7)  # int64

    def _offsets(self, name: str) -> str:
        ends = self.add("CumSum", self.add("Reshape", self._lengths(name), self.constant([-1])), self.constant(0))
        return self.add("Concat", self.constant([0]), ends, axis=0)

    def _values(self, name: str) -> str:
        values = name + VALUES
        width = self.add("Gather", self.add("Shape", values), self.constant(1))
        places = self.add("Range", self.constant(0), width, self.constant(1))
        is_value = self.add("Reshape", self.add("Less", places, self._lengths(name)), self.constant([-1]))
        return self.add("Compress", self.add("Reshape", values, self.constant([-1])), is_value, axis=0)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).removeprefix("[ONNXRuntimeError] : ")[:200].rstrip(".")
