// What all our backends share: the model's config, requests and answers. A backend says how a model is loaded and run.
#ifndef RANKLINE_TRITON_BACKEND_H_
#define RANKLINE_TRITON_BACKEND_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "json.h"
#include "tensor.h"

namespace rankline {

// What Triton says about a model that it wants served.
struct ModelInfo {
  std::string directory;  // of its version
  std::vector<TensorSpec> inputs, outputs;
  std::map<std::string, std::string> parameters;
  int64_t max_batch_size = 0;

  std::string Parameter(const std::string& name, const std::string& otherwise) const;
  // Throws ArtifactError: it is not a whole number.
  int64_t WholeNumber(const std::string& name, int64_t otherwise) const;
};

// A model in one thread.
class Runner {
 public:
  virtual ~Runner() = default;

  // Runs the rows of a request, or of several that were joined.
  //
  // given: a tensor for each input of the config; data is null for an optional one that is left out.
  // sink: takes the outputs of the config by their positions.
  //
  // Throws RequestError for values and shapes that the model does not take.
  virtual void Run(const std::vector<Tensor>& given, Sink& sink) = 0;
};

// A model in memory, once for all of its instances.
class LoadedModel {
 public:
  virtual ~LoadedModel() = default;
  virtual std::unique_ptr<Runner> MakeRunner() const = 0;

  // What runs a request, for messages.
  virtual const char* runs() const;
};

// --- what each backend defines ---

struct BackendTraits {
  const char* runs;  // what runs a request, for messages, unless the model says it: "TensorFlow"
  bool joins;        // requests that wait together are worth one run
};
extern const BackendTraits kBackend;

// Called once, with what the server's command line says for this backend: option → value. Throws std::exception.
void OpenBackend(const std::map<std::string, std::string>& options);

// Throws std::exception: it is missing or damaged, or does not fit the config.
std::unique_ptr<LoadedModel> LoadModel(const ModelInfo& step);

}  // namespace rankline

#endif  // RANKLINE_TRITON_BACKEND_H_
