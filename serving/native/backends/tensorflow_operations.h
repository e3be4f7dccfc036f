// Operations of TensorFlow that a SavedModel may hold, and those that it may not, beside those that only compute. The
// native backend is compiled with these lists; `serving/engines/tensorflow/allowed_operations.py` reads them from this
// file: a name in quotes is an entry.
#ifndef RANKLINE_BACKENDS_TENSORFLOW_OPERATIONS_H_
#define RANKLINE_BACKENDS_TENSORFLOW_OPERATIONS_H_

namespace rankline {

// clang-format off

// With a state, and taken.
constexpr const char* kKeeping[] = {
    "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "DestroyResourceOp", "HashTableV2",
    "AnonymousHashTable", "AnonymousMutableHashTable", "LookupTableExportV2", "LookupTableFindV2",
    "LookupTableImportV2", "LookupTableInsertV2", "LookupTableSizeV2", "MutableHashTableV2", "NoOp",
    "MutableDenseHashTableV2", "AnonymousMutableDenseHashTable", "PartitionedCall", "Placeholder",
    "MutableHashTableOfTensorsV2", "AnonymousMutableHashTableOfTensors", "InitializeTableV2", "ReadVariableOp",
    "ResourceGather", "ResourceGatherNd", "StatefulPartitionedCall", "StatelessIf", "VarHandleOp",
    "VarIsInitializedOp", "VariableShape", "Assert", "If", "While", "Case", "LookupTableRemoveV2",
    "DisableCopyOnRead", "Print", "RandomUniform", "RandomStandardNormal", "TruncatedNormal",
    "RandomUniformInt", "RandomGamma", "RandomShuffle", "Multinomial", "RngReadAndSkip", "RngSkip",
    "StatefulUniform", "StatefulStandardNormalV2", "StatefulTruncatedNormal", "StatefulUniformInt",
    "StatefulUniformFullInt", "StatefulRandomBinomial",
};

// Beginnings of the names of others, which training leaves in functions beside those that score.
constexpr const char* kKeepingKinds[] = {
    "CudnnRNN", "TensorArray", "ResourceApply", "ResourceSparseApply", "ResourceScatter",
    "ResourceStridedSlice",
};

// Reach beyond the graph, stateless or not: `ImmutableConst` is a file, `Abort` ends the process.
constexpr const char* kOutside[] = {
    "ReadFile", "WriteFile", "MatchingFiles", "PyFunc", "PyFuncStateless", "EagerPyFunc", "DecodeProtoV2",
    "EncodeProto", "RemoteCall", "SymbolicGradient", "ImmutableConst", "GenerateVocabRemapping", "Abort",
    "Copy", "CopyHost", "CustomAggregator", "MlirPassthroughOp", "InfeedEnqueuePrelinearizedBuffer",
};

// Write checkpoints: in every SavedModel, for whoever trains on. Nothing that is served leads to them.
constexpr const char* kWriting[] = {
    "SaveV2", "MergeV2Checkpoints",
};

// Restore variables from the SavedModel's own files, when it is loaded.
constexpr const char* kRestoring[] = {
    "RestoreV2", "ShardedFilename",
};

// Parts of names of operations that read or write elsewhere, or call what is not TensorFlow's.
constexpr const char* kIdle[] = {
    "InitializeTableFromTextFile", "Dataset", "Reader", "Iterator", "Summary", "Queue", "Py", "Debug",
    "XlaCustom",
};

// clang-format on

}  // namespace rankline

#endif  // RANKLINE_BACKENDS_TENSORFLOW_OPERATIONS_H_
