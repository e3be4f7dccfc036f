// TensorFlow operations that a SavedModel may and may not contain, in addition to purely computing ones. The native
// backend is compiled with these lists; `serving/engines/tensorflow/allowed_operations.py` reads them from this file:
// each quoted name is an entry.
#ifndef RANKLINE_BACKENDS_TENSORFLOW_OPERATIONS_H_
#define RANKLINE_BACKENDS_TENSORFLOW_OPERATIONS_H_

namespace rankline {

// clang-format off

// Stateful, but allowed.
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

// Prefixes of further allowed names, which training leaves in functions that are not used for scoring.
constexpr const char* kKeepingKinds[] = {
    "CudnnRNN", "TensorArray", "ResourceApply", "ResourceSparseApply", "ResourceScatter",
    "ResourceStridedSlice",
};

// Have effects outside the graph, stateless or not: `ImmutableConst` maps a file, `Abort` ends the process.
constexpr const char* kOutside[] = {
    "ReadFile", "WriteFile", "MatchingFiles", "PyFunc", "PyFuncStateless", "EagerPyFunc", "DecodeProtoV2",
    "EncodeProto", "RemoteCall", "SymbolicGradient", "ImmutableConst", "GenerateVocabRemapping", "Abort",
    "Copy", "CopyHost", "CustomAggregator", "MlirPassthroughOp", "InfeedEnqueuePrelinearizedBuffer",
};

// Write checkpoints. Every SavedModel contains them for further training, but no served output depends on them.
constexpr const char* kWriting[] = {
    "SaveV2", "MergeV2Checkpoints",
};

// Restore variables from the SavedModel's own files while it is loaded.
constexpr const char* kRestoring[] = {
    "RestoreV2", "ShardedFilename",
};

// Substrings of the names of operations that read or write outside the graph, or call code outside TensorFlow.
constexpr const char* kIdle[] = {
    "InitializeTableFromTextFile", "Dataset", "Reader", "Iterator", "Summary", "Queue", "Py", "Debug",
    "XlaCustom",
};

// clang-format on

}  // namespace rankline

#endif  // RANKLINE_BACKENDS_TENSORFLOW_OPERATIONS_H_
