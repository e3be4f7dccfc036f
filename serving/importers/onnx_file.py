"""Import ONNX files from any converter: PyTorch's, tf2onnx, skl2onnx or onnxmltools.

Nodes are added in front of the model that convert padded columns to its inputs, and behind it that cast its outputs to
float32. scikit-learn converters add a map of class names to probabilities for each row, which is removed: the
probabilities are already a tensor, and the class names become the names of its columns.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankline.serving.importers import ForeignModel
from rankline.serving.importers.input_binding import MATRIX, PADDED, Input, InputBinding, dtypes_of
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.model_artifact import ONNX
from rankline.workflows.schema.targets import Head, output_names
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, VALUES

_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
_FIRST_OPSET = 11  # the first with CumSum and Range
_INT64, _STRING = 7, 8  # values of TensorProto.DataType
_MAX_INLINED_BYTES, _NODE_BYTES = 64 << 20, 1 << 10
"""Maximum size of functions after inlining, and memory of a node in addition to its content."""
_TRIAL_BYTES, _TRIAL_CPU_S = 1 << 30, 3
"""Memory and CPU time allowed for the first row, in addition to allowances for the size of the model."""
_TOO_LARGE = 2  # exit status of the trial
_LABELS = frozenset({"label", "output_label"})
"""Converters' names for the output with the most probable class."""


def can_load(path: Path) -> bool:
    """Whether a file has the suffix `.onnx`, since protobuf messages have no signature to check."""
    return path.is_file() and path.suffix.lower() == ".onnx"


class Model(ForeignModel):
    format = ONNX

    def __init__(self, path: Path) -> None:
        for module in ("onnx", "onnxruntime"):
            require(module, feature=f"serving {path}", extra="onnx")
        self._model = _load(path)
        self._classes = _without_maps(self._model)
        given = {tensor.name for tensor in self._model.graph.initializer}
        given |= {part.values.name for part in self._model.graph.sparse_initializer}
        self.inputs = tuple(_input(path, tensor) for tensor in self._model.graph.input if tensor.name not in given)
        self._session = _open(path, self._model)
        scores = _scores(self._model, has_classes=bool(self._classes))
        for tensor in scores:
            _dtype(path, tensor, "gives")
        self._names = [tensor.name for tensor in scores]

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Score rows, omitting the redundant output for the most probable class."""
        try:
            return dict(zip(self._names, self._session.run(self._names, dict(arrays)), strict=True))
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise ExportError(f"the ONNX model failed on the sample: {_line(error)}.") from None

    def classes(self, output: str) -> tuple[str, ...]:
        return self._classes.get(output, ())

    def write(self, feeds: Sequence[InputBinding], heads: Sequence[Head], target: Path) -> None:
        target.write_bytes(_served(self._model, feeds, heads))


def _load(path: Path) -> Any:
    """Load and check a model, inlining its functions and loading its external weights."""
    import onnx
    import onnx.inliner

    try:
        model = onnx.load(str(path), load_external_data=False)
        model.DiscardUnknownFields()
        model.ClearField("training_info")  # ignored by ONNX Runtime
        _check_functions(path, model)
        _check_places(path, model)
        onnx.load_external_data_for_model(model, str(path.parent))
        onnx.checker.check_model(model)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
    except ArtifactError:
        raise
    except Exception as error:  # exceptions of protobuf and onnx have no common base
        raise ArtifactError(f"{path} cannot be read as ONNX: {_line(error)}. Convert the model again.") from None
    if any(tensor.data_location for tensor in _tensors(model)):  # ONNX Runtime would look for it
        raise ArtifactError(
            f"{path} has external data that the onnx package did not load. Save the model with all weights in the "
            "model file."
        )
    if foreign := sorted({node.domain for node in _nodes(model.graph)} - _DOMAINS):
        raise ArtifactError(
            f"{path} has operators from the domains {foreign}, expected only operators of ONNX and ONNX Runtime."
        )
    return model


def _check_functions(path: Path, model: Any) -> None:
    """Reject recursive functions, and functions that take too much memory after inlining.

    If each function calls the next one twice, the size grows exponentially with the number of functions.
    """
    functions = {_key(function, function.name): function for function in model.functions}
    sizes: dict[tuple[str, str, str], int | None] = {}

    def size_of(nodes: Iterable[Any]) -> int:
        """Return the inlined size of all calls among the nodes, including their branches and loops."""
        called = (_key(node, node.op_type) for outer in nodes for node in _with_inner(outer))
        return sum(inlined(key) for key in called if key in functions)

    def inlined(key: tuple[str, str, str]) -> int:
        if key not in sizes:
            sizes[key] = None
            nodes = functions[key].node
            sizes[key] = sum(node.ByteSize() + _NODE_BYTES for node in nodes) + size_of(nodes)
        size = sizes[key]
        if size is None:
            raise ArtifactError(
                f"{path} has a function {key[1]!r} that calls itself, which is not supported. Convert the model again."
            )
        return size

    if len(functions) < len(model.functions):
        raise ArtifactError(f"{path} has two functions with the same name. Convert the model again.")
    if (size := size_of(model.graph.node)) > _MAX_INLINED_BYTES:
        raise ArtifactError(
            f"{path} needs {float(size):.1g} bytes after its functions are inlined, expected at most "
            f"{_MAX_INLINED_BYTES:.1g}. Convert the model again, without functions."
        )


def _key(part: Any, name: str) -> tuple[str, str, str]:
    return part.domain, name, getattr(part, "overload", "")  # since onnx 1.16


def _open(path: Path, model: Any) -> Any:
    import onnxruntime

    content = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        _try(path, content)
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except ArtifactError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        versions = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
        raise ArtifactError(
            f"ONNX Runtime {onnxruntime.__version__} cannot run {path}, which uses opset {versions}: "
            f"{_line(error)}. Convert the model to an older opset, or install a newer onnxruntime."
        ) from None


def _try(path: Path, content: bytes) -> None:
    """Load and run a model in a subprocess with limited memory and CPU time. Raise ArtifactError if it exceeds these
    limits, or RuntimeError if it cannot be loaded.
    """
    max_bytes, max_cpu_s = _TRIAL_BYTES + 6 * len(content), _TRIAL_CPU_S + (len(content) >> 25)
    command = [sys.executable, str(Path(__file__).with_name("onnx_trial.py")), str(max_bytes), str(max_cpu_s)]
    done = subprocess.run(command, input=content, capture_output=True, check=False)
    if done.returncode < 0 or done.returncode == _TOO_LARGE:
        raise ArtifactError(
            f"{path} needs more than {max_bytes >> 20} MiB or {max_cpu_s} s of CPU time to load and score one row, "
            "or crashes ONNX Runtime. Convert the model again without such large constants or loops."
        )
    if done.returncode:
        raise RuntimeError((done.stdout or done.stderr[-200:]).decode(errors="replace"))


def _check_places(path: Path, model: Any) -> None:
    """Raise if external weights are not in the directory of the file."""
    directory = path.parent.resolve()
    for tensor in _tensors(model):
        for entry in tensor.external_data:
            place = PurePosixPath(entry.value.replace("\\", "/"))
            if entry.key == "location" and (
                place.is_absolute()
                or ".." in place.parts
                or not (directory / place).resolve().is_relative_to(directory)
            ):
                raise ArtifactError(
                    f"{path} has weights in {entry.value!r}, expected a relative path within the model's directory. "
                    "Save the model again with its weights in the same directory."
                )


def _tensors(model: Any) -> Iterator[Any]:
    """Yield all constant tensors of a model, including the values and indices of sparse constants."""
    for graph in _graphs(model.graph):
        yield from graph.initializer
        yield from (tensor for part in graph.sparse_initializer for tensor in (part.values, part.indices))
    bodies = (node for function in model.functions for outer in function.node for node in _with_inner(outer))
    for node in (*_nodes(model.graph), *bodies):
        for attribute in node.attribute:
            sparse = (attribute.sparse_tensor, *attribute.sparse_tensors)
            yield from (attribute.t, *attribute.tensors)
            yield from (tensor for part in sparse for tensor in (part.values, part.indices))


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in _nodes(graph):
        yield from (inner for attribute in node.attribute for inner in _inner(attribute))


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield from _with_inner(node)


def _with_inner(node: Any) -> Iterator[Any]:
    """Yield a node, and the nodes of its branches and loops at any depth."""
    waiting = [node]
    while waiting:
        outer = waiting.pop()
        yield outer
        waiting += (inner for attribute in outer.attribute for graph in _inner(attribute) for inner in graph.node)


def _inner(attribute: Any) -> Iterator[Any]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _without_maps(model: Any) -> dict[str, tuple[str, ...]]:
    """Replace outputs that are maps from class to probability with tensors. Return the class names of each."""
    from onnx import TensorProto, helper

    graph, classes = model.graph, dict[str, tuple[str, ...]]()
    outputs = {tensor.name: tensor for tensor in graph.output}
    for node in [node for node in graph.node if node.op_type == "ZipMap" and node.output[0] in outputs]:
        name = node.output[0]
        words = [entry for attribute in node.attribute for entry in (*attribute.strings, *attribute.ints)]
        classes[name] = tuple(word.decode() if isinstance(word, bytes) else str(word) for word in words)
        made = helper.make_node("Cast", [node.input[0]], [name], to=TensorProto.FLOAT)  # probabilities may be float64
        place = list(graph.node).index(node)
        graph.node.remove(node)
        graph.node.insert(place, made)
        tensor = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, len(words)])
        outputs[name].CopyFrom(tensor)
    return classes


def _scores(model: Any, *, has_classes: bool) -> list[Any]:
    """Return the numeric tensor outputs, excluding predicted class labels if the model also returns probabilities."""
    tensors = [tensor for tensor in model.graph.output if tensor.type.HasField("tensor_type")]
    kinds = {tensor.name: tensor.type.tensor_type.elem_type for tensor in tensors}
    scores = [
        tensor
        for tensor in tensors
        if kinds[tensor.name] != _STRING
        and not (kinds[tensor.name] == _INT64 and (has_classes or tensor.name in _LABELS) and len(tensors) > 1)
    ]
    return scores or tensors


def _input(path: Path, tensor: Any) -> Input:
    if not tensor.type.HasField("tensor_type"):
        raise ArtifactError(f"{path} has input {tensor.name!r}, which is not a tensor.")
    kind = tensor.type.tensor_type
    shape = None
    if kind.HasField("shape"):
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        if dims and dims[0] is not None:
            raise ArtifactError(
                f"{path} requires exactly {dims[0]} rows for input {tensor.name!r}, but must accept any number of "
                "rows. Convert the model again with a dynamic batch axis."
            )
        shape = tuple(dims)
    return Input(name=tensor.name, dtype=_dtype(path, tensor, "takes"), shape=shape)


def _dtype(path: Path, tensor: Any, verb: str) -> str:
    from onnx import TensorProto
    from onnx.helper import tensor_dtype_to_np_dtype

    kind = tensor.type.tensor_type.elem_type
    if kind == _STRING:
        return "object"
    dtype = tensor_dtype_to_np_dtype(kind)
    if dtype.isbuiltin != 1:  # dtype of another package
        name = TensorProto.DataType.Name(kind)
        raise ArtifactError(f"{path} {verb} {tensor.name!r} as {name}, expected FLOAT. Add a Cast to the model.")
    return str(dtype.name)


def _served(model: Any, feeds: Sequence[InputBinding], heads: Sequence[Head]) -> bytes:
    """Serialize the model, adding nodes that convert padded columns to its inputs and cast its outputs to float32."""
    from onnx import TensorProto

    from rankline.workflows.onnx.graph import Graph, serialized

    names = output_names(heads)
    graph = Graph([*dtypes_of(feeds), *names])
    _declare(graph, feeds)
    for feed in feeds:
        _feed(graph, feed)
    graph.include(_of_opset(model, feeds))
    for name, head in zip(names, heads, strict=True):
        flat = graph.add("Reshape", graph.inner + head.column, graph.constant([-1, head.width]))
        graph.add("Cast", flat, output=name, to=TensorProto.FLOAT)
        graph.give(name, head.width)
    return serialized(graph, "model")


def _of_opset(model: Any, feeds: Sequence[InputBinding]) -> Any:
    """Return the model, converted to a newer opset if it has list inputs and its own opset lacks operators for them."""
    from onnx import helper, version_converter

    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    if version is None:  # only tree operators
        whole = type(model)()
        whole.CopyFrom(model)
        whole.opset_import.append(helper.make_opsetid("", _FIRST_OPSET))
        return whole
    if version >= _FIRST_OPSET or not any(feed.is_of_list for feed in feeds):
        return model
    try:
        return version_converter.convert_version(model, _FIRST_OPSET)
    except Exception as error:  # onnx's exceptions have no common base
        raise ExportError(
            f"the ONNX model uses opset {version} and cannot be converted to opset {_FIRST_OPSET}: {_line(error)}. "
            "Convert the model again with a newer opset."
        ) from None


def _declare(graph: Any, feeds: Sequence[InputBinding]) -> None:
    from onnx.helper import np_dtype_to_tensor_dtype

    lists = {feed.columns[0] for feed in feeds if feed.is_of_list}
    for name, dtype in dtypes_of(feeds).items():
        kind = np_dtype_to_tensor_dtype(np.dtype(dtype))
        if name in lists:
            graph.take(name + VALUES, kind, f"width of {name}")
            graph.take(name + NNZS, np_dtype_to_tensor_dtype(np.dtype(np.int32)), 1)
        else:
            graph.take(name, kind, 1)


def _feed(graph: Any, feed: InputBinding) -> None:
    from onnx.helper import np_dtype_to_tensor_dtype

    kind, target = np_dtype_to_tensor_dtype(np.dtype(feed.dtype)), graph.inner + feed.input.name
    if feed.kind == MATRIX:
        columns = [graph.add("Cast", name, to=kind) for name in feed.columns]
        graph.add("Concat", *columns, output=target, axis=1)
        return
    name = feed.columns[0]
    if feed.kind == PADDED:
        graph.add("Cast", name + VALUES, output=target, to=kind)
        return
    part = {VALUES: _values, NNZS: _lengths, OFFSETS: _offsets}.get(feed.kind)
    made = name if part is None else part(graph, name)
    shape = [-1, 1] if feed.rank == 2 else [-1]
    graph.add("Cast", graph.add("Reshape", made, graph.constant(shape)), output=target, to=kind)


def _lengths(graph: Any, name: str) -> str:
    made: str = graph.add("Cast", name + NNZS, to=_INT64)
    return made


def _offsets(graph: Any, name: str) -> str:
    lengths = graph.add("Reshape", _lengths(graph, name), graph.constant([-1]))
    made: str = graph.add("Concat", graph.constant([0]), graph.add("CumSum", lengths, graph.constant(0)), axis=0)
    return made


def _values(graph: Any, name: str) -> str:
    values = name + VALUES
    width = graph.add("Gather", graph.add("Shape", values), graph.constant(1))
    places = graph.add("Range", graph.constant(0), width, graph.constant(1))
    is_value = graph.add("Reshape", graph.add("Less", places, _lengths(graph, name)), graph.constant([-1]))
    made: str = graph.add("Compress", graph.add("Reshape", values, graph.constant([-1])), is_value, axis=0)
    return made


def _line(error: object) -> str:
    return " ".join(str(error).split()).removeprefix("[ONNXRuntimeError] : ")[:200].rstrip(".")
