"""What a SavedModel may do when it is loaded and served, looked at before any of it runs.

A SavedModel is a program: it may read and write files and call Python. The native backend looks in the same way, by the
same lists (`serving/native/backends/tensorflow_operations.h`). Imported inside Triton and outside of it.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import serving.native
from workflows.errors import ArtifactError

_LISTS = Path(serving.native.__file__).parent / "backends" / "tensorflow_operations.h"
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_OF_CHECKPOINTS = ("__inference__traced_save_", "__inference__traced_restore_")


def _listed(name: str) -> frozenset[str]:
    found = re.search(rf"{name}\[\] = {{(.*?)}};", _LISTS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return frozenset(re.findall(r'"(\w+)"', found[1]))


_KEEPING, _OUTSIDE, _IDLE = _listed("kKeeping"), _listed("kOutside"), tuple(_listed("kIdle"))
_KEEPING_KINDS = tuple(_listed("kKeepingKinds"))
_RESTORING = _listed("kRestoring")
_CHECKPOINT = _RESTORING | _listed("kWriting")


def check_loaded(path: Path) -> None:
    """Refuse a SavedModel that does more than compute, whatever of its functions is called.

    Args:
        path: its directory.

    Raises:
        ArtifactError: it cannot be read, or holds operations that are not taken; the message names them.
    """
    saved = _read(path)
    if len(saved.meta_graphs) != 1 or not saved.meta_graphs[0].HasField("object_graph_def"):
        raise ArtifactError(
            f"{path} is a SavedModel of TensorFlow 1, whose graph runs as a whole when it is loaded. Save it by "
            "TensorFlow 2: tf.saved_model.save(model, path)."
        )
    found = set(_not_taken(saved.meta_graphs[0]))
    if unknown := sorted(name for name in found if _definition(name) is None):
        raise ArtifactError(
            f"{path} holds the operations {unknown}, which this TensorFlow does not have: they are custom, or of a "
            "newer release. Build the model of TensorFlow's own."
        )
    if found:
        raise ArtifactError(
            f"{path} holds the operations {sorted(found)}, which do more than compute. Only what computes, looks up "
            "and keeps variables is served."
        )
    is_with_onednn = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() not in ("0", "false")
    if is_with_onednn and (product := next(_crashing_products(saved.meta_graphs[0]), None)):
        raise ArtifactError(
            f"{path} multiplies a tensor of shape {product} by a matrix, at which TensorFlow 2.21 crashes (its issue "
            "117700). Set TF_ENABLE_ONEDNN_OPTS=0 here and where it is served, or reshape the tensor to (-1, columns)."
        )


def check_served(path: Path, tag: str = "serve") -> None:
    """Refuse a SavedModel that would do more than compute, keep variables and restore its own, as it is served.

    Args:
        path: its directory.
        tag: of the graph that is served.

    Raises:
        ArtifactError: it cannot be read, or what is run to load it or to score leads to operations that are not taken;
            the message names them.
    """
    for graph in _read(path).meta_graphs:
        if tag in graph.meta_info_def.tags and (found := set(_refused(graph))):
            raise ArtifactError(
                f"{path} runs the operations {sorted(found)}, which do more than compute. Only what computes, looks up "
                "and keeps variables is served."
            )


def _read(path: Path) -> Any:
    """The `SavedModel` message of a directory.

    Raises:
        ArtifactError: it cannot be read.
    """
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    try:
        return SavedModel.FromString((path / "saved_model.pb").read_bytes())
    except Exception as error:  # of protobuf, without a class that is public
        raise ArtifactError(
            f"{path} is not a SavedModel that can be loaded: saved_model.pb cannot be read ({type(error).__name__}). "
            "Save the model again."
        ) from None


def is_taken(name: str) -> bool:
    """Whether an operation only computes, or keeps variables and tables."""
    found = _definition(name)
    if found is None or name in _OUTSIDE:
        return False
    if name in _KEEPING or name.startswith(_KEEPING_KINDS):
        return True
    return not (found.is_stateful or any(part in name for part in _IDLE))


def _definition(name: str) -> Any:
    """What TensorFlow knows of an operation; None if it has none of the name."""
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(name)


def _called(node: Any) -> set[str]:
    """Functions that an operation may call."""
    values = node.attr.values()
    return {value.func.name for value in values} | {entry.name for value in values for entry in value.list.func}


def _refused(graph: Any) -> Iterator[str]:
    """Operations that a session runs and that are not taken: what restores may read the variables' files besides."""
    initialisers = [name for key in _INIT_COLLECTIONS for name in graph.collection_def[key].node_list.value]
    outputs = [tensor.name for signature in graph.signature_def.values() for tensor in signature.outputs.values()]
    inputs = [tensor.name for signature in graph.signature_def.values() for tensor in signature.inputs.values()]
    yield from (name for name in _run_by(graph, [*initialisers, *outputs, *inputs]) if not is_taken(name))
    restoring = [graph.saver_def.restore_op_name, graph.saver_def.filename_tensor_name]
    yield from (name for name in _run_by(graph, restoring) if name not in _RESTORING and not is_taken(name))


def _not_taken(graph: Any) -> Iterator[str]:
    """Operations of a meta graph that are not taken.

    What is loaded are functions of the library: those that an object of the model has, initialisers among them, and
    what they call. Nothing runs the graph beside them, which writes and restores checkpoints.
    """
    library = graph.graph_def.library.function
    of_objects = set(graph.object_graph_def.concrete_functions)
    checkpoints = {
        function.signature.name
        for function in library
        if function.signature.name.startswith(_OF_CHECKPOINTS) and function.signature.name not in of_objects
    }
    for node in graph.graph_def.node:
        if node.op not in _CHECKPOINT and not is_taken(node.op):
            yield node.op
    for function in library:
        is_checkpoint = function.signature.name in checkpoints
        for node in function.node_def:
            if _called(node) & checkpoints or not (is_taken(node.op) or (is_checkpoint and node.op in _CHECKPOINT)):
                yield node.op


def _run_by(graph: Any, roots: Iterable[str]) -> set[str]:
    """Operations that tensors and nodes of a graph need, and those of the functions that they call."""
    nodes = {node.name: node for node in graph.graph_def.node}
    functions = {function.signature.name: function.node_def for function in graph.graph_def.library.function}
    found, entered = set[str](), set[str]()
    reached = {_node_of(root) for root in roots} & nodes.keys()
    waiting = [(nodes[name], True) for name in reached]
    while waiting:
        node, is_outermost = waiting.pop()
        found.add(node.op)
        if is_outermost:  # of a function that is called, all counts
            sources = {_node_of(source) for source in node.input} & nodes.keys() - reached
            reached |= sources
            waiting += [(nodes[name], True) for name in sources]
        calls = (_called(node) | {node.op}) & functions.keys() - entered
        entered |= calls
        waiting += [(inner, False) for name in calls for inner in functions[name]]
    return found - functions.keys()


def _crashing_products(graph: Any) -> Iterator[str]:
    """Shapes of what is multiplied by a tensor of fewer dimensions where oneDNN reads past the end of that one.

    Seen with four dimensions or more of which one between the first and the last two is 1; it may be where it is
    unknown. TensorFlow's pull request 120199 mends it.
    """
    for function in graph.graph_def.library.function:
        shapes = {node.name: list(node.attr["_output_shapes"].list.shape) for node in function.node_def}
        for number, argument in enumerate(function.signature.input_arg):
            shapes[argument.name] = list(function.arg_attr[number].attr["_output_shapes"].list.shape)
        for node in function.node_def:
            factors = [_shape_of(source, shapes) for source in node.input[:2]] if "BatchMatMul" in node.op else []
            if not factors or any(shape is None or shape.unknown_rank for shape in factors):
                continue
            first, second = ([dim.size for dim in shape.dim] for shape in factors)
            if len(first) > max(3, len(second)) and {1, -1} & set(first[1:-2]):
                yield f"({', '.join('None' if size == -1 else str(size) for size in first)})"


def _shape_of(tensor: str, shapes: Mapping[str, Sequence[Any]]) -> Any:
    """The shape that a function's graph notes for a tensor, `node:output:number` or an argument; None for none."""
    name, _, place = tensor.partition(":")
    number = int(place.rpartition(":")[2] or 0)
    known = shapes.get(name, ())
    return known[number] if number < len(known) else None


def _node_of(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]
