// What a SavedModel may do, checked before TensorFlow loads it: `serving/engines/tensorflow/allowed_operations.py` is
// the same.
#ifndef RANKLINE_SAVED_MODEL_CHECK_H_
#define RANKLINE_SAVED_MODEL_CHECK_H_

#include <map>
#include <string>
#include <string_view>

namespace rankline {

// A tensor of a signature, and where it is in the graph.
struct SignatureTensor {
  std::string tensor;  // OPERATION:INDEX
  int dtype = 0;
};
struct Signature {
  std::map<std::string, SignatureTensor> inputs, outputs;
};

// Signatures of a MetaGraphDef.
std::map<std::string, Signature> SignaturesOf(std::string_view meta_graph);

// Operations by name, and whether each is stateful.
using Operations = std::map<std::string, bool>;

// Operations of an OpList.
Operations OperationsOf(std::string_view op_list);

constexpr const char* kTag = "serve";  // of the graph that is served

// Checks the directory and the graph that is served. Throws ArtifactError: TensorFlow could read a file in another way
// than it is checked, or the graph does more than compute.
void CheckServed(const std::string& directory, const Operations& known);

}  // namespace rankline

#endif  // RANKLINE_SAVED_MODEL_CHECK_H_
