// Sends odd requests through what all backends share, several at once and from several threads. In Triton's place it
// keeps Triton's promises and no more: memory is as large as it says, and what must be done once is counted. Built with
// sanitizers, it ends at the first read or write past an end, or at the first race; else it prints what became of all.
//
// The model adds up what the workflow makes of a row, so a request must get the same answer alone and among others, if
// the config is as it was written.
//
//     fuzz_shell SEED CONFIGS REQUESTS THREADS MODEL…     a MODEL holds config.json and 1/plan
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <thread>

#include "damage.h"
#include "triton/api.h"
#include "triton/backend.h"
#include "triton/workflow.h"

namespace fs = std::filesystem;
using rankline::Tensor;

struct TRITONSERVER_Error {
  int code;
  std::string what;
};
struct TRITONSERVER_Message {
  std::string text;
};
struct TRITONBACKEND_Backend {};
struct TRITONBACKEND_Model {
  std::string config, location;
  void* state = nullptr;
};
struct TRITONBACKEND_ModelInstance {
  TRITONBACKEND_Model* model;
  void* state = nullptr;
};
struct TRITONBACKEND_Input {
  std::string name;
  int type = 0;
  std::vector<int64_t> shape;
  std::vector<std::string> buffers;
  std::vector<std::unique_ptr<char[]>> memory;  // of exactly as many bytes
};
struct TRITONBACKEND_Output {
  std::string name;
  std::vector<int64_t> shape;
  std::unique_ptr<char[]> memory;
  uint64_t bytes = 0;
};
struct TRITONBACKEND_Response {
  TRITONBACKEND_Request* request;
  std::map<std::string, TRITONBACKEND_Output> outputs;
};
struct TRITONBACKEND_Request {
  std::vector<TRITONBACKEND_Input> inputs;
  std::vector<std::string> asked;
  bool is_cancelled = false;
  int answers = 0, releases = 0, error = 0;  // code of the error, 0 for none
  std::map<std::string, TRITONBACKEND_Output> outputs;
};

namespace {

void Must(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "broken promise: " << what << "\n";
  std::exit(3);
}

}  // namespace

// --- what Triton has ---

extern "C" {

TRITONSERVER_Error* TRITONSERVER_ErrorNew(int code, const char* message) {
  return new TRITONSERVER_Error{code, message};
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) { delete error; }
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) { return error->what.c_str(); }
TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** text,
                                                        size_t* size) {
  *text = message->text.data();
  *size = message->text.size();
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message) {
  delete message;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_LogMessage(int, const char*, int, const char*) { return nullptr; }
TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor) {
  *major = 1, *minor = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_BackendConfig(TRITONBACKEND_Backend*, TRITONSERVER_Message** config) {
  static TRITONSERVER_Message none{"{}"};
  *config = &none;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelRepository(TRITONBACKEND_Model* model, int* type, const char** location) {
  *type = 1, *location = model->location.c_str();
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelVersion(TRITONBACKEND_Model*, uint64_t* version) {
  *version = 1;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t, TRITONSERVER_Message** config) {
  *config = new TRITONSERVER_Message{model->config};
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model* model, void** state) {
  *state = model->state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state) {
  model->state = state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance* instance,
                                                     TRITONBACKEND_Model** model) {
  *model = instance->model;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance* instance, void** state) {
  *state = instance->state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance* instance, void* state) {
  instance->state = state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request*,
                                                                bool, uint64_t begun, uint64_t compute_begun,
                                                                uint64_t compute_ended, uint64_t ended) {
  Must(begun <= compute_begun && compute_begun <= compute_ended && compute_ended <= ended, "times in their order");
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance*, uint64_t, uint64_t,
                                                                     uint64_t, uint64_t, uint64_t) {
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  *count = static_cast<uint32_t>(request->inputs.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestInput(TRITONBACKEND_Request* request, const char* name,
                                               TRITONBACKEND_Input** input) {
  for (TRITONBACKEND_Input& given : request->inputs) {
    if (given.name != name) continue;
    *input = &given;
    return nullptr;
  }
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "no such input");
}
TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name, int* type,
                                                  const int64_t** shape, uint32_t* dims, uint64_t* bytes,
                                                  uint32_t* buffers) {
  *name = input->name.c_str(), *type = input->type;
  *shape = input->shape.data(), *dims = static_cast<uint32_t>(input->shape.size());
  *bytes = 0;
  for (const std::string& buffer : input->buffers) *bytes += buffer.size();
  *buffers = static_cast<uint32_t>(input->buffers.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, uint32_t index, const void** buffer,
                                              uint64_t* bytes, int* memory, int64_t* memory_id) {
  const std::string& held = input->buffers.at(index);
  input->memory.emplace_back(new char[held.size()]);
  std::memcpy(input->memory.back().get(), held.data(), held.size());
  *buffer = input->memory.back().get(), *bytes = held.size();
  *memory = TRITONSERVER_MEMORY_CPU, *memory_id = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  *count = static_cast<uint32_t>(request->asked.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request* request, uint32_t index, const char** name) {
  *name = request->asked.at(index).c_str();
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request* request, bool* is_cancelled) {
  *is_cancelled = request->is_cancelled;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t) {
  ++request->releases;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request) {
  Must(request->releases == 0, "no answer to a released request");
  *response = new TRITONBACKEND_Response{request, {}};
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response* response, TRITONBACKEND_Output** output,
                                                 const char* name, int, const int64_t* shape, uint32_t dims) {
  Must(response->outputs.count(name) == 0, "each output once");
  TRITONBACKEND_Output& made = response->outputs[name];
  made.shape.assign(shape, shape + dims);
  *output = &made;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** buffer, uint64_t bytes, int* memory,
                                               int64_t* memory_id) {
  output->memory.reset(new char[bytes]);
  output->bytes = bytes;
  *buffer = output->memory.get(), *memory = TRITONSERVER_MEMORY_CPU, *memory_id = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, uint32_t, TRITONSERVER_Error* error) {
  ++response->request->answers;
  if (error != nullptr)
    response->request->error = error->code;
  else
    response->request->outputs = std::move(response->outputs);
  delete response;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model*);
TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request**, uint32_t);
}

// --- the backend ---

namespace rankline {
namespace {

double NumberAt(const Tensor& tensor, int64_t at) {
  switch (tensor.dtype) {
    case Dtype::kInt64:
      return static_cast<double>(static_cast<const int64_t*>(tensor.data)[at] % 1000);
    case Dtype::kInt32:
      return static_cast<const int32_t*>(tensor.data)[at];
    case Dtype::kFloat32:
      return static_cast<const float*>(tensor.data)[at];
    case Dtype::kFloat64:
      return static_cast<const double*>(tensor.data)[at];
    default:
      return static_cast<const unsigned char*>(tensor.data)[static_cast<size_t>(at) * SizeOf(tensor.dtype)];
  }
}

// Adds up a row; where rows hold candidates, what they share and each one's own.
class Sum : public Runner, public LoadedModel {
 public:
  explicit Sum(const ModelInfo& model) : model_(model) {
    for (const TensorSpec& spec : model.outputs) {
      if (spec.dtype != Dtype::kFloat32) throw ArtifactError("sums are float32");
    }
  }
  std::unique_ptr<Runner> MakeRunner() const override { return std::make_unique<Sum>(model_); }

  void Run(const std::vector<Tensor>& given, Sink& sink) override {
    int64_t rows = 0, width = 1;
    for (size_t i = 0; i < given.size(); ++i) {
      rows = given[i].rows;
      if (IsOfCandidates(i)) width = given[i].width;
    }
    for (size_t o = 0; o < model_.outputs.size(); ++o) {
      auto* scores = static_cast<float*>(sink.Allocate(o, rows, width));
      for (int64_t row = 0; row < rows; ++row) {
        double shared = 0;
        for (size_t i = 0; i < given.size(); ++i) {
          for (int64_t at = 0; at < given[i].width && !IsOfCandidates(i); ++at)
            shared += NumberAt(given[i], row * given[i].width + at);
        }
        for (int64_t at = 0; at < width; ++at) {
          double own = shared;
          for (size_t i = 0; i < given.size(); ++i) own += IsOfCandidates(i) ? NumberAt(given[i], row * width + at) : 0;
          scores[row * width + at] = static_cast<float>(own);
        }
      }
    }
  }

 private:
  bool IsOfCandidates(size_t input) const {
    const TensorSpec& spec = model_.inputs[input];
    return spec.width == kAnyWidth && spec.name.find("__values") == std::string::npos;
  }

  ModelInfo model_;
};

}  // namespace

const BackendTraits kBackend = {"the sum", true};
void OpenBackend(const std::map<std::string, std::string>&) {}
std::unique_ptr<LoadedModel> LoadModel(const ModelInfo& step) {
  if (step.directory.find("_transform_") != std::string::npos) return LoadWorkflow(step);
  return LoadBehindWorkflow(
      step, [](const ModelInfo& model) -> std::unique_ptr<LoadedModel> { return std::make_unique<Sum>(model); });
}

}  // namespace rankline

// --- odd requests ---

namespace {

struct DeclaredInput {
  std::string name, type;
  bool is_list;
};

// The inputs of a config that is as it was written.
std::vector<DeclaredInput> InputsOf(const std::string& config) {
  std::vector<DeclaredInput> inputs;
  const rankline::Json document = rankline::Json::Parse(config);
  for (const rankline::Json& entry : document["input"].array()) {
    const rankline::Json& dim = entry["dims"].array()[0];
    inputs.push_back({entry["name"].string(), entry["data_type"].string(), dim.is_string() && dim.string() == "-1"});
  }
  return inputs;
}

const std::map<std::string, std::pair<int, size_t>> kTypes = {{"TYPE_BOOL", {1, 1}},
                                                              {"TYPE_INT32", {8, 4}},
                                                              {"TYPE_INT64", {9, 8}},
                                                              {"TYPE_FP32", {11, 4}},
                                                              {"TYPE_STRING", {13, 0}}};

std::string Values(const DeclaredInput& input, int64_t count) {
  static const std::vector<std::string> kTexts = {"", "a", "b", std::string(129, 'x'), std::string(300, 'x'), "\xff\0"};
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    if (input.type == "TYPE_STRING") {
      const std::string& text = OneOf(kTexts);
      auto length = static_cast<uint32_t>(text.size());
      if (Below(2000) == 0) length = static_cast<uint32_t>(OneOf(kNumbers));
      bytes.append(reinterpret_cast<const char*>(&length), 4);
      bytes += text;
    } else if (input.type == "TYPE_BOOL") {
      bytes += static_cast<char>(Below(2));
    } else if (input.type == "TYPE_FP32") {
      const auto value = static_cast<float>(Below(40) - 20);
      bytes.append(reinterpret_cast<const char*>(&value), 4);
    } else {
      const int64_t value = Below(50) == 0 ? OneOf(kNumbers) : Below(3);
      bytes.append(reinterpret_cast<const char*>(&value), kTypes.at(input.type).second);
    }
  }
  return bytes;
}

TRITONBACKEND_Request Drawn(const std::vector<DeclaredInput>& inputs) {
  TRITONBACKEND_Request request;
  const int64_t rows = 1 + Below(4), candidates = 1 + Below(5);
  const bool is_odd = Below(5) == 0;
  for (const DeclaredInput& input : inputs) {
    const bool is_mask = input.name.find("__valid") != std::string::npos;
    if (is_mask ? Below(8) != 0 : is_odd && Below(20) == 0) continue;
    const bool is_history = input.name.find("__values") != std::string::npos;
    TRITONBACKEND_Input made;
    made.name = is_odd && Below(40) == 0 ? "nobody" : input.name;
    made.type = is_odd && Below(40) == 0 ? static_cast<int>(Below(15)) : kTypes.at(input.type).first;
    made.shape = {is_odd && Below(20) == 0 ? Below(6) : rows,
                  input.is_list ? (is_history ? 2 + Below(3) : candidates) : 1};
    if (is_odd && Below(20) == 0) made.shape[1] = Below(7);
    std::string bytes = Values(input, made.shape[0] * made.shape[1]);
    if (is_odd && Below(20) == 0) made.shape[static_cast<size_t>(Below(2))] = OneOf(kNumbers);
    if (is_odd && Below(40) == 0) made.shape.resize(static_cast<size_t>(1 + Below(3)), 1);
    if (is_odd && Below(20) == 0) DamageBytes(bytes);
    const auto cut = static_cast<size_t>(Below(8) == 0 ? Below(static_cast<int64_t>(bytes.size()) + 1) : 0);
    if (cut > 0) made.buffers.push_back(bytes.substr(0, cut));
    if (cut < bytes.size()) made.buffers.push_back(bytes.substr(cut));
    request.inputs.push_back(std::move(made));
  }
  if (Below(10) != 0) request.asked = {"score"};
  request.is_cancelled = Below(50) == 0;
  return request;
}

TRITONBACKEND_Request Again(const TRITONBACKEND_Request& request) {
  TRITONBACKEND_Request copy;
  for (const TRITONBACKEND_Input& input : request.inputs)
    copy.inputs.push_back({input.name, input.type, input.shape, input.buffers, {}});
  copy.asked = request.asked;
  copy.is_cancelled = request.is_cancelled;
  return copy;
}

void Execute(TRITONBACKEND_ModelInstance& instance, std::vector<TRITONBACKEND_Request>& requests) {
  std::vector<TRITONBACKEND_Request*> pointers;
  for (TRITONBACKEND_Request& request : requests) pointers.push_back(&request);
  Must(
      TRITONBACKEND_ModelInstanceExecute(&instance, pointers.data(), static_cast<uint32_t>(pointers.size())) == nullptr,
      "no error of all requests");
  for (const TRITONBACKEND_Request& request : requests)
    Must(request.answers == 1 && request.releases == 1, "one answer and one release for each request");
}

void MustAgree(const TRITONBACKEND_Request& among, const TRITONBACKEND_Request& alone) {
  Must((among.error == 0) == (alone.error == 0), "a request is refused alone as among others");
  Must(among.outputs.size() == alone.outputs.size(), "as many outputs alone as among others");
  for (const auto& [name, output] : among.outputs) {
    const TRITONBACKEND_Output& other = alone.outputs.at(name);
    Must(output.shape == other.shape && output.bytes == other.bytes, "the same shape alone as among others");
    for (uint64_t at = 0; at + 4 <= output.bytes; at += 4) {
      float one = 0, two = 0;
      std::memcpy(&one, output.memory.get() + at, 4);
      std::memcpy(&two, other.memory.get() + at, 4);
      Must(one == two || (std::isnan(one) && std::isnan(two)), "the same scores alone as among others");
    }
  }
}

using Counts = std::map<std::string, int64_t>;

void Ask(TRITONBACKEND_ModelInstance& instance, const std::vector<DeclaredInput>& inputs, int64_t num_requests,
         bool agree, Counts& became) {
  for (int64_t sent = 0; sent < num_requests;) {
    std::vector<TRITONBACKEND_Request> together, alone(1);
    for (int64_t count = 1 + Below(6); count > 0; --count) together.push_back(Drawn(inputs));
    std::vector<TRITONBACKEND_Request> again;
    for (const TRITONBACKEND_Request& request : together) again.push_back(Again(request));
    Execute(instance, together);
    for (size_t i = 0; i < together.size(); ++i) {
      alone[0] = std::move(again[i]);
      Execute(instance, alone);
      if (agree) MustAgree(together[i], alone[0]);
      ++became[together[i].error == 0                                ? "answered"
               : together[i].error == TRITONSERVER_ERROR_CANCELLED   ? "cancelled"
               : together[i].error == TRITONSERVER_ERROR_INVALID_ARG ? "refused"
                                                                     : "failed"];
    }
    sent += static_cast<int64_t>(2 * together.size());
  }
}

bool IsFine(TRITONSERVER_Error* error) {
  delete error;
  return error == nullptr;
}

// What can be loaded is asked, from several threads with an instance each.
void Serve(const std::string& config, bool is_whole, const std::string& location,
           const std::vector<DeclaredInput>& inputs, int64_t num_requests, int num_threads, Counts& became) {
  TRITONBACKEND_Model model{config, location};
  if (!IsFine(TRITONBACKEND_ModelInitialize(&model))) {
    ++became["refused to load"];
    return;
  }
  ++became["loaded"];
  std::vector<Counts> counts(static_cast<size_t>(num_threads));
  std::vector<std::thread> threads;
  for (Counts& own : counts) {
    const uint64_t seed = random_bits();
    threads.emplace_back([&, seed] {
      random_bits.seed(seed);
      TRITONBACKEND_ModelInstance instance{&model};
      if (!IsFine(TRITONBACKEND_ModelInstanceInitialize(&instance))) return;
      Ask(instance, inputs, num_requests / num_threads, is_whole, own);
      Must(IsFine(TRITONBACKEND_ModelInstanceFinalize(&instance)), "an instance ends");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Counts& own : counts) {
    for (const auto& [what, times] : own) became[what] += times;
  }
  Must(IsFine(TRITONBACKEND_ModelFinalize(&model)), "a model ends");
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 6) return 2;
  random_bits.seed(std::stoull(arguments[1]));
  const int64_t num_configs = std::stoll(arguments[2]), num_requests = std::stoll(arguments[3]);
  const int num_threads = std::stoi(arguments[4]);
  Counts became;
  for (int i = 5; i < count; ++i) {
    const std::string location = arguments[i], config = Read(location + "/config.json");
    const std::vector<DeclaredInput> inputs = InputsOf(config);
    Serve(config, true, location, inputs, num_requests, num_threads, became);
    for (int64_t number = 0; number < num_configs; ++number) {
      std::string damaged = config;
      Below(4) == 0 ? DamageBytes(damaged) : DamageJson(damaged);
      Serve(damaged, false, location, inputs, 20, 1, became);
    }
  }
  for (const auto& [what, times] : became) std::cout << what << " " << times << "\n";
}
