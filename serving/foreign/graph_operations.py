"""What a SavedModel of somebody else may hold, looked at before any of it runs.

A SavedModel is a program: loading it runs its initialisers, and it may read and write files and call Python. What only
computes is taken, and what keeps variables and tables. Writing and restoring checkpoints is there in every SavedModel,
in functions of their own that nothing else may call.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workflows.errors import ArtifactError

_KEEPING = frozenset(
    {
        *("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "DestroyResourceOp", "HashTableV2"),
        *("AnonymousHashTable", "AnonymousMutableHashTable", "LookupTableExportV2", "LookupTableFindV2"),
        *("LookupTableImportV2", "LookupTableInsertV2", "LookupTableSizeV2", "MutableHashTableV2", "NoOp"),
        *("MutableDenseHashTableV2", "AnonymousMutableDenseHashTable", "PartitionedCall", "Placeholder"),
        *("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "StatefulPartitionedCall", "StatelessIf"),
        *("VarHandleOp", "VarIsInitializedOp", "VariableShape", "Assert", "If", "While", "Case"),
        *("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt"),
        *("InitializeTableV2", "LookupTableRemoveV2", "DisableCopyOnRead", "Print"),
    }
)
"""With a state, and taken."""
_OUTSIDE = frozenset(
    {
        *("ReadFile", "WriteFile", "MatchingFiles", "PyFunc", "PyFuncStateless", "EagerPyFunc", "DecodeProtoV2"),
        *("EncodeProto", "RemoteCall", "SymbolicGradient"),
    }
)
"""Reach beyond the graph, stateless or not."""
_CHECKPOINT = frozenset({"SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename"})
_OF_CHECKPOINTS = ("__inference__traced_save_", "__inference__traced_restore_")
_IDLE = ("InitializeTableFromTextFile", "Dataset", "Reader", "Iterator", "Summary", "Queue", "Py")
"""Parts of names of operations that read or write elsewhere."""


def check_operations(path: Path) -> None:
    """Refuse a SavedModel that does more than compute.

    Args:
        path: its directory.

    Raises:
        ArtifactError: it cannot be read, or holds operations that are not taken; the message names them.
    """
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    try:
        saved = SavedModel.FromString((path / "saved_model.pb").read_bytes())
    except Exception as error:  # of protobuf, without a class that is public
        raise ArtifactError(
            f"{path / 'saved_model.pb'} cannot be read ({type(error).__name__}). Save the model again."
        ) from None
    found = {name for graph in saved.meta_graphs for name in _foreign(graph)}
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


def _foreign(graph: Any) -> Iterator[str]:
    """Operations of a meta graph that are not taken."""
    library = graph.graph_def.library.function
    checkpoints = {
        function.signature.name for function in library if function.signature.name.startswith(_OF_CHECKPOINTS)
    }
    kept = {name for node in graph.object_graph_def.nodes for name in node.function.concrete_functions}
    for node in graph.graph_def.node:
        if node.op not in _CHECKPOINT and not _is_taken(node.op):
            yield node.op
    for function in library:
        own = function.signature.name
        is_checkpoint = own in checkpoints and own not in kept
        for node in function.node_def:
            called = {attribute.func.name for attribute in node.attr.values()} & checkpoints
            if called or not (_is_taken(node.op) or (is_checkpoint and node.op in _CHECKPOINT)):
                yield node.op


def _is_taken(name: str) -> bool:
    definition = _definition(name)
    if definition is None or name in _OUTSIDE:
        return False
    return name in _KEEPING or not (definition.is_stateful or any(part in name for part in _IDLE))


def _definition(name: str) -> Any:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(name)
