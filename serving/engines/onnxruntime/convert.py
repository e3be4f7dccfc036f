"""A trained model as ONNX, the format that ONNX Runtime runs: our backend `onnxruntime`, and Triton's own.

The file takes the padded layout of all served models: inputs under the names of the tensors, one output per
head, any number of rows and any width of lists. The same model gives the same bytes, which say nothing of the machine.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from serving.engines import engine_for
from serving.engines.onnxruntime import ENGINE
from workflows.errors import ExportError
from workflows.extras import require
from workflows.trained import SAVED_MODEL, TORCH_SCRIPT, ModelArtifact

_OPSET, _IR_VERSION = 17, 8  # known to ONNX Runtime from 1.13 on
_MAX_BYTES = 2**31 - 1  # of a protobuf message
_MAX_REASON = 200
_CONVERTERS = {
    SAVED_MODEL: ("from_saved_model", ("onnx", "tf2onnx")),
    TORCH_SCRIPT: ("from_torch_script", ("onnx",)),
}
"""Format of a trained model → the module here with its `to_onnx`, and the packages that it needs."""


def convert(trained: ModelArtifact, target: Path) -> None:
    """Convert a model. Whether it scores alike is checked by `serving.parity`.

    Args:
        trained: the model.
        target: file to write.

    Raises:
        ExportError: the model holds what has no ONNX form, or is too large for an ONNX file.
        MissingExtraError: the packages that convert it are not installed.
    """
    path, instead = trained.model_path, f"Use the engine {engine_for(trained.format).name}."
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    if (num_bytes := sum(file.stat().st_size for file in files)) > _MAX_BYTES:
        raise ExportError(f"{path} has {num_bytes / 2**30:.1f} GiB, an ONNX file holds at most 2. {instead}")
    converter, packages = _CONVERTERS[trained.format]
    for module in (*packages, ENGINE.module):
        require(module, feature="the engine onnx", extra=ENGINE.extra)
    try:
        content = _serialized(import_module(f"{ENGINE.package}.{converter}").to_onnx(trained, _OPSET))
    except Exception as error:  # converters raise anything
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise ExportError(
            f"{path} cannot be converted to ONNX ({type(error).__name__}: {reason}). {instead}"
        ) from error
    target.write_bytes(content)


class _Names(dict[str, str]):
    """Old name → new name: a number, since converters count theirs on from model to model."""

    def __missing__(self, old: str) -> str:
        self[old] = new = f"/{len(self)}" if old else ""
        return new


def _serialized(model: Any) -> bytes:
    """The model without what converters write about themselves, checked."""
    from onnx import checker, helper

    for tensors in (model.graph.input, model.graph.output):
        tensors.sort(key=lambda tensor: tensor.name)  # a SavedModel has them in any order
    used = {node.domain for node in model.graph.node}
    versions = [version for version in model.opset_import if version.domain in used]
    names = _Names({tensor.name: tensor.name for tensor in (*model.graph.input, *model.graph.output)})
    graph = _bare(model.graph, names)
    for tensor in (*graph.input, *graph.output):
        for axis, dim in enumerate(tensor.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_param = f"width of {tensor.name}" if axis else "rows"
    made = helper.make_model(graph, opset_imports=versions, ir_version=_IR_VERSION, producer_name="rankline")
    checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString(deterministic=True))


def _bare(graph: Any, names: _Names) -> Any:
    """A graph under new names: what its outputs need, in an order that only depends on what they need it for."""
    from onnx import helper

    nodes = []
    for node in _in_order(graph):
        inputs = [names[name] for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                attribute.g.CopyFrom(_bare(attribute.g, names))
        bare = helper.make_node(node.op_type, inputs, [names[name] for name in node.output], domain=node.domain)
        bare.attribute.extend(sorted(node.attribute, key=lambda attribute: attribute.name))
        nodes.append(bare)
    constants = [tensor for tensor in graph.initializer if tensor.name in names]
    for tensor in (*constants, *graph.input, *graph.output):
        tensor.name = names[tensor.name]
        tensor.ClearField("doc_string")
    constants.sort(key=lambda tensor: int(tensor.name[1:]))
    return helper.make_graph(nodes, "model", graph.input, graph.output, constants)


def _in_order(graph: Any) -> list[Any]:
    """The nodes that the outputs need, each behind those that it needs itself; tf2onnx's order changes by the run."""
    makers = {name: node for node in graph.node for name in node.output}
    done: dict[int, Any] = {}
    waiting = [(makers[tensor.name], False) for tensor in reversed(graph.output) if tensor.name in makers]
    while waiting:
        node, is_ready = waiting.pop()
        if is_ready:
            done.setdefault(id(node), node)
        elif id(node) not in done:
            waiting.append((node, True))
            waiting += [(makers[name], False) for name in reversed(_needs(node)) if name in makers]
    return list(done.values())


def _needs(node: Any) -> list[str]:
    """Names that a node uses, those in the graphs of its attributes included."""
    inner = (name for attribute in node.attribute for part in attribute.g.node for name in _needs(part))
    return [*node.input, *inner]
