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
        *("MutableHashTableOfTensorsV2", "AnonymousMutableHashTableOfTensors", "InitializeTableV2"),
        *("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "StatefulPartitionedCall", "StatelessIf"),
        *("VarHandleOp", "VarIsInitializedOp", "VariableShape", "Assert", "If", "While", "Case"),
        *("LookupTableRemoveV2", "DisableCopyOnRead", "Print"),
        *("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt", "RandomGamma"),
        *("RandomShuffle", "Multinomial", "RngReadAndSkip", "RngSkip", "StatefulUniform", "StatefulStandardNormalV2"),
        *("StatefulTruncatedNormal", "StatefulUniformInt", "StatefulUniformFullInt", "StatefulRandomBinomial"),
    }
)
"""With a state, and taken."""
_KEEPING_KINDS = (
    "CudnnRNN",
    "TensorArray",
    "ResourceApply",
    "ResourceSparseApply",
    "ResourceScatter",
    "ResourceStridedSlice",
)
"""Beginnings of the names of others, which training leaves in functions beside those that score."""
_OUTSIDE = frozenset(
    {
        *("ReadFile", "WriteFile", "MatchingFiles", "PyFunc", "PyFuncStateless", "EagerPyFunc", "DecodeProtoV2"),
        *("EncodeProto", "RemoteCall", "SymbolicGradient", "ImmutableConst", "GenerateVocabRemapping", "Abort"),
        *("Copy", "CopyHost", "CustomAggregator", "MlirPassthroughOp", "InfeedEnqueuePrelinearizedBuffer"),
    }
)
"""Reach beyond the graph, stateless or not: `ImmutableConst` is a file, `Abort` ends the process."""
_CHECKPOINT = frozenset({"SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename"})
_OF_CHECKPOINTS = ("__inference__traced_save_", "__inference__traced_restore_")
_IDLE = ("InitializeTableFromTextFile", "Dataset", "Reader", "Iterator", "Summary", "Queue", "Py", "Debug", "XlaCustom")
"""Parts of names of operations that read or write elsewhere, or call what is not TensorFlow's."""


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
    if len(saved.meta_graphs) != 1 or not saved.meta_graphs[0].HasField("object_graph_def"):
        raise ArtifactError(
            f"{path} is a SavedModel of TensorFlow 1, whose graph runs as a whole when it is loaded. Save it by "
            "TensorFlow 2: tf.saved_model.save(model, path)."
        )
    found = set(_foreign(saved.meta_graphs[0]))
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
        if node.op not in _CHECKPOINT and not _is_taken(node.op):
            yield node.op
    for function in library:
        is_checkpoint = function.signature.name in checkpoints
        for node in function.node_def:
            if _called(node) & checkpoints or not (_is_taken(node.op) or (is_checkpoint and node.op in _CHECKPOINT)):
                yield node.op


def _called(node: Any) -> set[str]:
    """Functions that an operation may call."""
    values = node.attr.values()
    return {value.func.name for value in values} | {entry.name for value in values for entry in value.list.func}


def _is_taken(name: str) -> bool:
    definition = _definition(name)
    if definition is None or name in _OUTSIDE:
        return False
    if name in _KEEPING or name.startswith(_KEEPING_KINDS):
        return True
    return not (definition.is_stateful or any(part in name for part in _IDLE))


def _definition(name: str) -> Any:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(name)
