// Checks the content of a SavedModel before TensorFlow loads it, like
// `serving/engines/tensorflow/allowed_operations.py`.
#ifndef RANKLINE_SAVED_MODEL_CHECK_H_
#define RANKLINE_SAVED_MODEL_CHECK_H_

#include <map>
#include <string>
#include <string_view>

namespace rankline {

// A tensor of a signature, and its place in the graph.
struct SignatureTensor {
  std::string tensor;  // OPERATION:INDEX
  int dtype = 0;
};
struct Signature {
  std::map<std::string, SignatureTensor> inputs, outputs;
};

// Returns the signatures of a MetaGraphDef.
std::map<std::string, Signature> SignaturesOf(std::string_view meta_graph);

// Mapping from operation name to whether it is stateful.
using Operations = std::map<std::string, bool>;

// Returns the operations of an OpList.
Operations OperationsOf(std::string_view op_list);

constexpr const char* kTag = "serve";  // tag of the served graph

// Checks the directory and the served graph. Throws ArtifactError if TensorFlow could read a file differently than this
// check, or if the graph does more than compute.
void CheckServed(const std::string& directory, const Operations& known);

}  // namespace rankline

#endif  // RANKLINE_SAVED_MODEL_CHECK_H_
