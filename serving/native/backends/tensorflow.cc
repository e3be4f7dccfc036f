// Triton backend `tensorflow`: runs one signature of a SavedModel through TensorFlow's C API. Parameters and defaults
// are the same as in `serving/engines/tensorflow/model.py`.
//
// Command-line option of the server: `library`, the path of libtensorflow_cc.so.2.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "saved_model/check.h"
#include "triton/engine.h"
#include "triton/names.h"
#include "triton/workflow.h"

namespace rankline {
namespace {

// --- the functions of TensorFlow's C API that this file calls, as its headers declare them ---

struct TF_Status;
struct TF_Session;
struct TF_SessionOptions;
struct TF_Graph;
struct TF_Operation;
struct TF_Tensor;
struct TF_Buffer {
  const void* data;
  size_t length;
  void (*deallocator)(void* data, size_t length);
};
struct TF_Output {
  TF_Operation* operation;
  int index;
};

struct Api {
  TF_Status* (*NewStatus)();
  void (*DeleteStatus)(TF_Status*);
  int (*GetCode)(const TF_Status*);
  const char* (*Message)(const TF_Status*);
  TF_SessionOptions* (*NewSessionOptions)();
  void (*DeleteSessionOptions)(TF_SessionOptions*);
  void (*SetConfig)(TF_SessionOptions*, const void* config, size_t size, TF_Status*);
  TF_Graph* (*NewGraph)();
  void (*DeleteGraph)(TF_Graph*);
  TF_Buffer* (*NewBuffer)();
  void (*DeleteBuffer)(TF_Buffer*);
  TF_Session* (*LoadSessionFromSavedModel)(const TF_SessionOptions*, const TF_Buffer* run_options,
                                           const char* directory, const char* const* tags, int num_tags, TF_Graph*,
                                           TF_Buffer* meta_graph, TF_Status*);
  void (*CloseSession)(TF_Session*, TF_Status*);
  void (*DeleteSession)(TF_Session*, TF_Status*);
  TF_Operation* (*GraphOperationByName)(TF_Graph*, const char* name);
  void (*SessionRun)(TF_Session*, const TF_Buffer* run_options, const TF_Output* inputs, TF_Tensor* const* values,
                     int num_inputs, const TF_Output* outputs, TF_Tensor** results, int num_outputs,
                     const TF_Operation* const* targets, int num_targets, TF_Buffer* metadata, TF_Status*);
  TF_Tensor* (*NewTensor)(int dtype, const int64_t* dims, int num_dims, void* data, size_t size,
                          void (*deallocator)(void* data, size_t size, void* argument), void* argument);
  void (*DeleteTensor)(TF_Tensor*);
  void* (*TensorData)(const TF_Tensor*);
  size_t (*TensorByteSize)(const TF_Tensor*);
  int (*NumDims)(const TF_Tensor*);
  int64_t (*Dim)(const TF_Tensor*, int index);
  TF_Buffer* (*GetAllOpList)();
};

Api tf;

// TensorFlow's type numbers in the order of Dtype.
constexpr int kTypes[] = {10, 6, 5, 3, 9, 4, 17, 22, 23, 19, 1, 2, 7};

// The excluded codes blame the machine or this program, not the request: unknown, exhausted, precondition, internal.
bool IsOfTheRequest(int code) { return code != 2 && code != 8 && code != 9 && code != 13; }

class Status {
 public:
  Status() : status_(tf.NewStatus()) {}
  ~Status() { tf.DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  TF_Status* get() const { return status_; }
  int code() const { return tf.GetCode(status_); }
  std::string what() const { return FirstLine(tf.Message(status_)); }

 private:
  TF_Status* status_;
};

// Encodes a number in protobuf's wire format.
std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::map<std::string, std::string> DtypesOf(const std::map<std::string, SignatureTensor>& tensors) {
  std::map<std::string, std::string> dtypes;
  for (const auto& [name, tensor] : tensors) dtypes[name] = TypeName(kTypes, tensor.dtype);
  return dtypes;
}

// Returns all operations of the loaded TensorFlow.
const Operations& KnownOperations() {
  static const Operations known = [] {
    const std::unique_ptr<TF_Buffer, void (*)(TF_Buffer*)> all(tf.GetAllOpList(), tf.DeleteBuffer);
    return OperationsOf({static_cast<const char*>(all->data), all->length});
  }();
  return known;
}

class SavedModel;

class Session : public Runner {
 public:
  explicit Session(const SavedModel& model) : model_(model) {}
  void Run(const std::vector<Tensor>& given, Sink& sink) override;

 private:
  const SavedModel& model_;
  std::vector<TF_Tensor*> values_, results_;
};

class SavedModel : public LoadedModel {
 public:
  explicit SavedModel(const ModelInfo& model) : info(model) {
    const std::string directory = model.directory + "/model.savedmodel";
    const std::string name = model.Parameter("TF_SIGNATURE_DEF", "serving_default");
    if (!std::filesystem::is_regular_file(directory + "/saved_model.pb")) {
      throw ArtifactError(directory + " contains no SavedModel (no saved_model.pb). Export it again.");
    }
    CheckServed(directory, KnownOperations());
    const Status status;
    const std::unique_ptr<TF_SessionOptions, void (*)(TF_SessionOptions*)> options(tf.NewSessionOptions(),
                                                                                   tf.DeleteSessionOptions);
    const std::string config = Config(model);
    tf.SetConfig(options.get(), config.data(), config.size(), status.get());
    const std::unique_ptr<TF_Buffer, void (*)(TF_Buffer*)> meta_graph(tf.NewBuffer(), tf.DeleteBuffer);
    const char* tags[] = {kTag};
    graph = tf.NewGraph();
    session = tf.LoadSessionFromSavedModel(options.get(), nullptr, directory.c_str(), tags, 1, graph, meta_graph.get(),
                                           status.get());
    if (status.code() != 0) {
      tf.DeleteGraph(graph);
      throw ArtifactError(directory + " cannot be loaded: " + status.what());
    }
    try {
      Bind(SignaturesOf({static_cast<const char*>(meta_graph->data), meta_graph->length}), name, directory);
    } catch (...) {
      Close();
      throw;
    }
  }
  ~SavedModel() override { Close(); }
  SavedModel(const SavedModel&) = delete;
  SavedModel& operator=(const SavedModel&) = delete;

  std::unique_ptr<Runner> MakeRunner() const override { return std::make_unique<Session>(*this); }

  ModelInfo info;
  TF_Graph* graph = nullptr;
  TF_Session* session = nullptr;
  std::vector<TF_Output> inputs, outputs;

 private:
  // Returns a ConfigProto without GPU, and with the numbers of intra-op and inter-op threads (see config.proto).
  static std::string Config(const ModelInfo& model) {
    const auto intra = static_cast<uint64_t>(model.WholeNumber("INTRA_OP_THREADS", 0));
    const auto inter = static_cast<uint64_t>(int64_t{-1});                // none: the caller runs all operations
    const std::string no_gpu = std::string("\x0a\x03GPU\x10", 6) + '\0';  // an entry of device_count: "GPU" → 0
    return "\x0a" + Varint(no_gpu.size()) + no_gpu + "\x10" + Varint(intra) + "\x28" + Varint(inter);
  }

  void Bind(const std::map<std::string, Signature>& signatures, const std::string& name, const std::string& directory) {
    const auto found = signatures.find(name);
    if (found == signatures.end()) {
      std::vector<std::string> available;
      for (const auto& [key, signature] : signatures) {
        if (key.compare(0, 2, "__") != 0) available.push_back(key);
      }
      throw ArtifactError(directory + " has no signature '" + name + "'. Available: " + Listed(available) + ".");
    }
    const std::string described = "signature '" + name + "' of " + directory;
    CheckTensors(described, "inputs", info.inputs, DtypesOf(found->second.inputs), true);
    CheckTensors(described, "outputs", info.outputs, DtypesOf(found->second.outputs), false);
    for (const TensorSpec& spec : info.inputs) inputs.push_back(InGraph(found->second.inputs.at(spec.name).tensor));
    for (const TensorSpec& spec : info.outputs) outputs.push_back(InGraph(found->second.outputs.at(spec.name).tensor));
  }

  TF_Output InGraph(const std::string& tensor) const {
    const size_t colon = tensor.rfind(':');
    const std::string operation = tensor.substr(0, colon);
    int index = -1;
    std::from_chars(tensor.data() + colon + 1, tensor.data() + tensor.size(), index);
    TF_Operation* found = tf.GraphOperationByName(graph, operation.c_str());
    if (found == nullptr || index < 0) throw ArtifactError("the graph has no tensor '" + tensor + "'");
    return {found, index};
  }

  void Close() {
    const Status status;
    tf.CloseSession(session, status.get());
    tf.DeleteSession(session, status.get());
    tf.DeleteGraph(graph);
  }
};

void Session::Run(const std::vector<Tensor>& given, Sink& sink) {
  CheckGiven(given, model_.info.inputs);
  // Tensors are views of the request's memory if it is aligned for TensorFlow; otherwise it is copied.
  struct Tensors {
    std::vector<TF_Tensor*>& all;
    ~Tensors() {
      for (TF_Tensor* tensor : all) {
        if (tensor != nullptr) tf.DeleteTensor(tensor);
      }
      all.clear();
    }
  };
  const Tensors values{values_}, results{results_};
  for (size_t i = 0; i < given.size(); ++i) {
    const Tensor& tensor = given[i];
    const int64_t dims[] = {tensor.rows, tensor.width};
    values_.push_back(tf.NewTensor(
        kTypes[static_cast<size_t>(tensor.dtype)], dims, tensor.rank, const_cast<void*>(tensor.data),
        tensor.num_bytes(), [](void*, size_t, void*) {}, nullptr));
    if (values_.back() == nullptr) throw std::bad_alloc();
  }
  results_.assign(model_.outputs.size(), nullptr);
  const Status status;
  tf.SessionRun(model_.session, nullptr, model_.inputs.data(), values_.data(), static_cast<int>(values_.size()),
                model_.outputs.data(), results_.data(), static_cast<int>(results_.size()), nullptr, 0, nullptr,
                status.get());
  if (status.code() != 0) {
    if (IsOfTheRequest(status.code())) throw RequestError(status.what());
    throw std::runtime_error(status.what());
  }
  for (size_t i = 0; i < results_.size(); ++i) {
    const TF_Tensor* result = results_[i];
    const int64_t rows = tf.NumDims(result) == 0 ? 1 : tf.Dim(result, 0);
    int64_t width = 1;
    for (int d = 1; d < tf.NumDims(result); ++d) width *= tf.Dim(result, d);
    const size_t bytes = static_cast<size_t>(rows * width) * SizeOf(model_.info.outputs[i].dtype);
    if (bytes != tf.TensorByteSize(result))
      throw std::runtime_error("'" + model_.info.outputs[i].name + "' has an unexpected type");
    std::memcpy(sink.Allocate(i, rows, width), tf.TensorData(result), bytes);
  }
}

template <typename F>
void Find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(FunctionOf(library, name));
}

}  // namespace

const BackendTraits kBackend = {"TensorFlow", true};

void OpenBackend(const std::map<std::string, std::string>& options) {
  setenv("TF_CPP_MIN_LOG_LEVEL", "2", 0);
  void* library = OpenLibrary(options, "libtensorflow_cc.so.2", true);
  Find(library, "TF_NewStatus", tf.NewStatus);
  Find(library, "TF_DeleteStatus", tf.DeleteStatus);
  Find(library, "TF_GetCode", tf.GetCode);
  Find(library, "TF_Message", tf.Message);
  Find(library, "TF_NewSessionOptions", tf.NewSessionOptions);
  Find(library, "TF_DeleteSessionOptions", tf.DeleteSessionOptions);
  Find(library, "TF_SetConfig", tf.SetConfig);
  Find(library, "TF_NewGraph", tf.NewGraph);
  Find(library, "TF_DeleteGraph", tf.DeleteGraph);
  Find(library, "TF_NewBuffer", tf.NewBuffer);
  Find(library, "TF_DeleteBuffer", tf.DeleteBuffer);
  Find(library, "TF_LoadSessionFromSavedModel", tf.LoadSessionFromSavedModel);
  Find(library, "TF_CloseSession", tf.CloseSession);
  Find(library, "TF_DeleteSession", tf.DeleteSession);
  Find(library, "TF_GraphOperationByName", tf.GraphOperationByName);
  Find(library, "TF_SessionRun", tf.SessionRun);
  Find(library, "TF_NewTensor", tf.NewTensor);
  Find(library, "TF_DeleteTensor", tf.DeleteTensor);
  Find(library, "TF_TensorData", tf.TensorData);
  Find(library, "TF_TensorByteSize", tf.TensorByteSize);
  Find(library, "TF_NumDims", tf.NumDims);
  Find(library, "TF_Dim", tf.Dim);
  Find(library, "TF_GetAllOpList", tf.GetAllOpList);
}

std::unique_ptr<LoadedModel> LoadModel(const ModelInfo& step) {
  return LoadBehindWorkflow(
      step, [](const ModelInfo& model) -> std::unique_ptr<LoadedModel> { return std::make_unique<SavedModel>(model); });
}

}  // namespace rankline
