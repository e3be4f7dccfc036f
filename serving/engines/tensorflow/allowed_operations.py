"""Check a SavedModel's operations before any of them runs.

A SavedModel is a program: it may read and write files and call Python. The native backend performs the same check with
the same lists (`serving/native/backends/tensorflow_operations.h`). Imported inside and outside Triton.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any

from rankline.workflows.core.errors import ArtifactError

_LISTS = Path(__file__).parents[2] / "native" / "backends" / "tensorflow_operations.h"
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_OF_CHECKPOINTS = ("__inference__traced_save_", "__inference__traced_restore_")
_OWN_FILES = re.compile(
    r"saved_model\.pb|fingerprint\.pb|keras_metadata\.pb|variables/variables\.(index|data-\d{5}-of-\d{5})|assets/[^/]+"
)
_FOLDERS = ("variables", "assets", "debug")
_READ_INSTEAD = ("saved_model.", "variables/")
_MAX_ELEMENTS = 1 << 25
"""Number of constant elements allowed beyond the bytes of the file. A shape needs memory, but no space on disk."""

_MAX_NODES, _MAX_DEPTH = 1 << 18, 100
"""Limits of a graph after inlining: number of nodes, counting a function's nodes at every call, and depth of calls."""


def _listed(name: str) -> frozenset[str]:
    found = re.search(rf"{name}\[\] = {{(.*?)}};", _LISTS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return frozenset(re.findall(r'"(\w+)"', found[1]))


_KEEPING, _OUTSIDE, _IDLE = _listed("kKeeping"), _listed("kOutside"), tuple(_listed("kIdle"))
_KEEPING_KINDS = tuple(_listed("kKeepingKinds"))
_RESTORING = _listed("kRestoring")
_CHECKPOINT = _RESTORING | _listed("kWriting")


def check_loaded(path: Path) -> None:
    """Raise ArtifactError if a SavedModel may have side effects when it is loaded or called."""
    _check_files(path, is_served=False)
    saved = _read(path)
    if len(saved.meta_graphs) != 1 or not saved.meta_graphs[0].HasField("object_graph_def"):
        raise ArtifactError(
            f"{path} is a TensorFlow 1 SavedModel, and loading it would run its whole graph. Save it with TensorFlow "
            "2: tf.saved_model.save(model, path)."
        )
    found = set(_not_taken(saved.meta_graphs[0]))
    if unknown := sorted(name for name in found if _definition(name) is None):
        raise ArtifactError(
            f"{path} contains the operations {unknown}, which are either custom or from a newer TensorFlow "
            "release. Use only built-in operations of the installed TensorFlow."
        )
    if found:
        raise ArtifactError(
            f"{path} contains the operations {sorted(found)}, which may have side effects. Only operations that "
            "compute, look up values or hold variables can be served."
        )
    is_with_onednn = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() not in ("0", "false")
    if is_with_onednn and (product := next(_crashing_products(saved.meta_graphs[0]), None)):
        raise ArtifactError(
            f"{path} multiplies a tensor of shape {product} by a matrix, which crashes TensorFlow 2.21 (issue "
            "117700). Set TF_ENABLE_ONEDNN_OPTS=0 here and on the serving machine, or reshape the tensor to (-1, "
            "columns)."
        )


def check_served(path: Path) -> None:
    """Raise ArtifactError if serving a SavedModel may do more than compute, update its state and restore variables."""
    _check_files(path, is_served=True)
    for graph in _read(path).meta_graphs:
        if "serve" in graph.meta_info_def.tags and (found := set(_refused(graph))):
            raise ArtifactError(
                f"{path} runs the operations {sorted(found)}, which may have side effects. Only operations that "
                "compute, look up values or hold variables can be served."
            )


def _check_files(path: Path, *, is_served: bool) -> None:
    """Reject any file that TensorFlow might read in place of a checked one, and anything that is not a regular file.

    A served SavedModel must contain nothing else. Others may contain links to files, as in model caches, and a README.
    """
    try:
        for file in _files(path):
            name = file.relative_to(path).as_posix()
            is_link, is_own = file.is_symlink(), _OWN_FILES.fullmatch(name) is not None
            if is_served:
                is_fine = is_own and file.is_file() and not is_link
            elif file.is_dir():
                is_fine = not is_link and file.parent == path
            else:
                is_fine = file.is_file() and (is_own or not name.startswith(_READ_INSTEAD))
            if not is_fine:
                raise ArtifactError(f"{file} is a link or does not belong in a SavedModel. Remove it.")
        _check_variables(path / "variables" / "variables")
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read ({error.strerror}).") from None


def _files(path: Path) -> Iterator[Path]:
    for entry in path.iterdir():
        if entry.name in _FOLDERS and entry.is_dir() and not entry.is_symlink():
            yield from entry.iterdir()
        else:
            yield entry


def _read(path: Path) -> Any:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    try:
        content = (path / "saved_model.pb").read_bytes()
        saved = SavedModel.FromString(content)
    except Exception as error:  # protobuf's exception class is not public
        raise ArtifactError(
            f"{path} is not a loadable SavedModel: saved_model.pb cannot be read ({type(error).__name__}). Save the "
            "model again."
        ) from None
    saved.DiscardUnknownFields()
    if saved.ByteSize() != len(content):
        raise ArtifactError(
            f"{path / 'saved_model.pb'} has duplicate fields, or fields that the installed TensorFlow does not "
            "recognize. Save the model again with this release of TensorFlow or an older release."
        )
    for graph in saved.meta_graphs:
        _check_graph(path, graph.graph_def, len(content))
    return saved


def _check_graph(path: Path, graph: Any, num_bytes: int) -> None:
    """Reject duplicate names, as well as constants or calls that would expand far beyond the size of the file."""
    functions = graph.library.function
    names = Counter(node.name for node in graph.node), Counter(function.signature.name for function in functions)
    if twice := [name for counts in names for name, count in counts.items() if count > 1]:
        raise ArtifactError(f"{path} has two nodes or functions named {twice[0]!r}. Save the model again.")
    tensors = (value.tensor for node in _nodes(graph) for value in node.attr.values() if value.HasField("tensor"))
    num_elements = sum(prod(max(0, dim.size) for dim in tensor.tensor_shape.dim) for tensor in tensors)
    if num_elements > _MAX_ELEMENTS + num_bytes:
        raise ArtifactError(
            f"{path} declares constants with {num_elements} elements in total, but the file has only {num_bytes} "
            "bytes. Save the model with variables instead of constants."
        )
    _check_calls(path, {function.signature.name: function.node_def for function in functions} | {"": graph.node})


def _check_calls(path: Path, nodes: Mapping[str, Sequence[Any]]) -> None:
    """Reject recursive and deeply nested functions, since TensorFlow expands each call on loading."""
    calls = {name: [called for node in own for called in _called(node)] for name, own in nodes.items()}
    num_nodes, depths = Counter[str](), Counter[str]()
    try:
        for name in TopologicalSorter(calls).static_order():
            inner = calls.get(name, ())
            num_nodes[name] = len(nodes.get(name, ())) + sum(num_nodes[called] for called in inner)
            depths[name] = 1 + max((depths[called] for called in inner), default=0)
            if num_nodes[name] > _MAX_NODES or depths[name] > _MAX_DEPTH:
                raise ArtifactError(
                    f"{path} has function calls with {depths[name]} levels of nesting and {num_nodes[name]} nodes in "
                    f"total, but at most {_MAX_DEPTH} levels and {_MAX_NODES} nodes are supported. Save a simpler "
                    "model."
                )
    except CycleError:
        raise ArtifactError(f"{path} has recursive functions, which are not supported. Use a loop instead.") from None


def _check_variables(prefix: Path) -> None:
    """Raise ArtifactError if the variables need more bytes than their files contain."""
    import tensorflow as tf

    if not prefix.with_suffix(".index").is_file():
        return
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        line = str(error).partition("\n")[0]
        raise ArtifactError(f"{prefix}.index cannot be read ({line}). Save the model again.") from None
    num_bytes = sum(prod(shape) * max(1, dtypes[name].size) for name, shape in shapes.items())
    has = sum(file.stat().st_size for file in prefix.parent.glob("variables.data-*"))
    if num_bytes > has:
        raise ArtifactError(
            f"{prefix}.index lists {num_bytes} bytes of variables, but the variable files contain only {has}. "
            "Save the model again."
        )


def is_allowed(name: str) -> bool:
    """Whether an operation only computes, or holds variables and lookup tables."""
    found = _definition(name)
    if found is None or name in _OUTSIDE:
        return False
    if name in _KEEPING or name.startswith(_KEEPING_KINDS):
        return True
    return not (found.is_stateful or any(part in name for part in _IDLE))


def _definition(name: str) -> Any:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(name)


def _called(node: Any) -> list[str]:
    """Return the names of the functions that a node may call, once for each reference."""
    values = node.attr.values()
    functions = [value.func for value in values if value.HasField("func")]
    return [node.op, *(function.name for function in (*functions, *(f for value in values for f in value.list.func)))]


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _refused(graph: Any) -> Iterator[str]:
    """Yield the forbidden operations of a served meta graph. Its restore operation may read the variables' files.

    The whole graph is checked, because TensorFlow runs stateless nodes during shape inference. Save and restore
    operations are stateful, and are accepted if no signature or initializer reaches them.
    """
    functions = {function.signature.name for function in graph.graph_def.library.function}
    operations = {node.op for node in _nodes(graph.graph_def)} - functions - _CHECKPOINT
    yield from (name for name in operations if not is_allowed(name))
    initialisers = [name for key in _INIT_COLLECTIONS for name in graph.collection_def[key].node_list.value]
    outputs = [tensor.name for signature in graph.signature_def.values() for tensor in signature.outputs.values()]
    inputs = [tensor.name for signature in graph.signature_def.values() for tensor in signature.inputs.values()]
    yield from (name for name in _run_by(graph, [*initialisers, *outputs, *inputs]) if not is_allowed(name))
    restoring = [graph.saver_def.restore_op_name, graph.saver_def.filename_tensor_name]
    yield from (name for name in _run_by(graph, restoring) if name not in _RESTORING and not is_allowed(name))


def _not_taken(graph: Any) -> Iterator[str]:
    """Yield the forbidden operations of a meta graph that is loaded rather than served.

    Loading runs only library functions: the functions of the model's objects, including initializers, and their
    callees. The graph outside the library writes and restores checkpoints, and is never run.
    """
    library = graph.graph_def.library.function
    of_objects = set(graph.object_graph_def.concrete_functions)
    checkpoints = {
        function.signature.name
        for function in library
        if function.signature.name.startswith(_OF_CHECKPOINTS) and function.signature.name not in of_objects
    }
    for node in graph.graph_def.node:
        if node.op not in _CHECKPOINT and not is_allowed(node.op):
            yield node.op
    for function in library:
        is_checkpoint = function.signature.name in checkpoints
        for node in function.node_def:
            if checkpoints.intersection(_called(node)) or not (
                is_allowed(node.op) or (is_checkpoint and node.op in _CHECKPOINT)
            ):
                yield node.op


def _run_by(graph: Any, roots: Iterable[str]) -> set[str]:
    """Return the operations that the tensors and nodes in `roots` depend on, including those in called functions."""
    nodes = {node.name: node for node in graph.graph_def.node}
    functions = {function.signature.name: function.node_def for function in graph.graph_def.library.function}
    found, entered = set[str](), set[str]()
    reached = {_node_of(root) for root in roots} & nodes.keys()
    waiting = [(nodes[name], True) for name in reached]
    while waiting:
        node, is_outermost = waiting.pop()
        found.add(node.op)
        if is_outermost:  # called functions count as a whole
            sources = {_node_of(source) for source in node.input} & nodes.keys() - reached
            reached |= sources
            waiting += [(nodes[name], True) for name in sources]
        calls = set(_called(node)) & functions.keys() - entered
        entered |= calls
        waiting += [(inner, False) for name in calls for inner in functions[name]]
    return found - functions.keys()


def _crashing_products(graph: Any) -> Iterator[str]:
    """Yield the left factor's shape for each batch matrix product that makes oneDNN read past the right factor's end.

    This was observed for four or more dimensions if a dimension other than the first and the last two is 1, or possibly
    1 because it is unknown. TensorFlow's pull request 120199 fixes it.
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
    """Return the shape recorded in a function for `tensor`, an argument name or `node:output:number`. Return None if
    the shape is unknown.
    """
    name, _, place = tensor.partition(":")
    number = int(place.rpartition(":")[2] or 0)
    known = shapes.get(name, ())
    return known[number] if number < len(known) else None


def _node_of(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]
