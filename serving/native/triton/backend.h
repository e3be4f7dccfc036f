// Shared by all backends: model config, requests and responses. Each backend defines how to load and run a model.
#ifndef RANKLINE_TRITON_BACKEND_H_
#define RANKLINE_TRITON_BACKEND_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "json.h"
#include "tensor.h"

namespace rankline {

// Triton's description of a model to serve.
struct ModelInfo {
  std::string directory;  // of the model version
  std::vector<TensorSpec> inputs, outputs;
  std::map<std::string, std::string> parameters;
  int64_t max_batch_size = 0;

  std::string Parameter(const std::string& name, const std::string& otherwise) const;
  // Throws ArtifactError if the parameter is not an integer.
  int64_t WholeNumber(const std::string& name, int64_t otherwise) const;
};

// Runs a model in one thread.
class Runner {
 public:
  virtual ~Runner() = default;

  // Runs the rows of one request or of several joined requests.
  //
  // given: one tensor per input of the config; data is null for a missing optional input.
  // sink: takes the outputs by their positions in the config.
  //
  // Throws RequestError for values and shapes that the model does not accept.
  virtual void Run(const std::vector<Tensor>& given, Sink& sink) = 0;
};

// A loaded model, shared by all of its instances.
class LoadedModel {
 public:
  virtual ~LoadedModel() = default;
  virtual std::unique_ptr<Runner> MakeRunner() const = 0;

  // Names the engine that runs requests, for messages.
  virtual const char* runs() const;
};

// Verifies the files in a step's folder against the manifest of its version, at a path in the model repository, like
// `serving/triton/step.py`. Throws ArtifactError if one is missing, damaged or not in the manifest.
void CheckStep(const std::string& model, const std::string& manifest);

// --- defined by each backend ---

struct BackendTraits {
  const char* runs;  // engine name for messages, unless the model overrides it
  bool joins;        // whether to join waiting requests into one run
};
extern const BackendTraits kBackend;

// Called once with the server's command-line options for this backend. Throws std::exception.
void OpenBackend(const std::map<std::string, std::string>& options);

// Throws std::exception if the model is missing or damaged, or does not fit the config.
std::unique_ptr<LoadedModel> LoadModel(const ModelInfo& step);

}  // namespace rankline

#endif  // RANKLINE_TRITON_BACKEND_H_
