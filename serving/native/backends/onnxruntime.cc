// Triton backend `onnxruntime`: runs model.onnx through ONNX Runtime's C API. Parameters and defaults are the same as
// in `serving/engines/onnxruntime/model.py`.
//
// Command-line option of the server: `library`, the path of libonnxruntime.so.
#include <sched.h>

#include <cstring>
#include <filesystem>

#include "mapped_file.h"
#include "protobuf.h"
#include "triton/engine.h"
#include "triton/workflow.h"

namespace rankline {
namespace {

// --- the functions of ONNX Runtime's C API that this file calls ---

struct OrtStatus;
struct OrtEnv;
struct OrtSession;
struct OrtSessionOptions;
struct OrtMemoryInfo;
struct OrtValue;
struct OrtTypeInfo;
struct OrtTensorInfo;
struct OrtAllocator;

// The API is an append-only table of functions: a function's index in it is part of the ABI.
enum Place : size_t {
  kGetErrorCode = 1,
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kCreateSessionFromArray = 8,
  kRun = 9,
  kCreateSessionOptions = 10,
  kSetSessionLogSeverityLevel = 22,
  kSetIntraOpNumThreads = 24,
  kSessionGetInputCount = 30,
  kSessionGetOutputCount = 31,
  kSessionGetInputTypeInfo = 33,
  kSessionGetOutputTypeInfo = 34,
  kSessionGetInputName = 36,
  kSessionGetOutputName = 37,
  kCreateTensorWithDataAsOrtValue = 49,
  kGetTensorMutableData = 51,
  kCastTypeInfoToTensorInfo = 55,
  kGetTensorElementType = 60,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kCreateCpuMemoryInfo = 69,
  kAllocatorFree = 76,
  kGetAllocatorWithDefaultOptions = 78,
  kReleaseStatus = 93,
  kReleaseMemoryInfo = 94,
  kReleaseSession = 95,
  kReleaseValue = 96,
  kReleaseTypeInfo = 98,
  kReleaseTensorInfo = 99,
  kReleaseSessionOptions = 100,
  kAddSessionConfigEntry = 130,
};

constexpr uint32_t kApiVersion = 5;  // the first version with AddSessionConfigEntry

struct OrtApiBase {
  void* const* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

void* const* functions = nullptr;
OrtEnv* environment = nullptr;

template <typename R, typename... Arguments>
R Call(Place place, Arguments... arguments) {
  return reinterpret_cast<R (*)(Arguments...)>(functions[place])(arguments...);
}

// ONNX type numbers in the order of Dtype; they differ from Triton's.
constexpr int kTypes[] = {9, 3, 5, 6, 7, 2, 4, 12, 13, 10, 1, 11, 8};
constexpr int kSayNothing = 4;  // problems are also returned as errors
constexpr int kDeviceAllocator = 0, kDefaultMemory = 0;

// Error codes of kernels for invalid values and shapes: fail, invalid argument, runtime exception.
bool IsOfTheRequest(int code) { return code == 1 || code == 2 || code == 6; }

// Returns the reason for an error in one line, without the location in the graph.
std::string Reason(const std::string& message) {
  const std::string mark = " Status Message: ";
  const size_t at = message.find(mark);
  return FirstLine(at == std::string::npos ? message : message.substr(at + mark.size()));
}

void Check(OrtStatus* status) {
  if (status == nullptr) return;
  const std::string what = Reason(Call<const char*>(kGetErrorMessage, static_cast<const OrtStatus*>(status)));
  const int code = Call<int>(kGetErrorCode, static_cast<const OrtStatus*>(status));
  Call<void>(kReleaseStatus, status);
  if (IsOfTheRequest(code)) throw RequestError(what);
  throw std::runtime_error(what);
}

template <typename... Arguments>
void Do(Place place, Arguments... arguments) {
  Check(Call<OrtStatus*>(place, arguments...));
}

// Deleter for objects of ONNX Runtime.
template <typename T, Place release>
struct Releaser {
  void operator()(T* owned) const { Call<void>(release, owned); }
};
template <typename T, Place release>
using Owned = std::unique_ptr<T, Releaser<T, release>>;

int64_t NumCores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// --- allowed content of a file, as in `serving/engines/onnxruntime/session.py` ---

// Messages that can contain tensors, directly or nested.
enum Message : uint8_t { kModel, kGraph, kNode, kAttribute, kSparse, kTensor };
struct MessageField {
  Message message;
  uint64_t number;
  Message type;
};
constexpr MessageField kMessageFields[] = {
    {kModel, 7, kGraph},      {kGraph, 1, kNode},        {kGraph, 5, kTensor},      {kGraph, 15, kSparse},
    {kNode, 5, kAttribute},   {kAttribute, 5, kTensor},  {kAttribute, 6, kGraph},   {kAttribute, 10, kTensor},
    {kAttribute, 11, kGraph}, {kAttribute, 22, kSparse}, {kAttribute, 23, kSparse}, {kSparse, 1, kTensor},
    {kSparse, 2, kTensor},
};
// Allowed fields of a model; 20 (training) and 25 (functions) are excluded.
constexpr std::string_view kOfModel = "\1\2\3\4\5\6\7\10\16", kRepeatedOfModel = "\10\16";
constexpr uint64_t kExternalData = 13, kDataLocation = 14;  // of a tensor
constexpr uint64_t kMaxField = UINT32_MAX >> 3;

// Throws ArtifactError if the file is damaged, or has fields that Rankline does not write.
void CheckFile(std::string_view content) {
  std::vector<std::pair<Message, std::string_view>> parts{{kModel, content}};
  std::string seen;
  while (!parts.empty()) {
    const auto [message, bytes] = parts.back();
    parts.pop_back();
    for (ProtoReader reader(bytes); reader.Next();) {
      const uint64_t number = reader.field;
      if (number > kMaxField) throw ArtifactError("it has the unknown field " + std::to_string(number));
      if (message == kModel) {
        const char name = number < 32 ? static_cast<char>(number) : '\0';
        const bool is_twice = seen.find(name) != std::string::npos && kRepeatedOfModel.find(name) == std::string::npos;
        if (kOfModel.find(name) == std::string_view::npos || is_twice)
          throw ArtifactError("field " + std::to_string(number) +
                              " of the model is repeated or is never written by Rankline");
        seen += name;
      }
      if (message == kTensor && (number == kExternalData || (number == kDataLocation && reader.number != 0)))
        throw ArtifactError("its weights are in another file");
      for (const MessageField& field : kMessageFields) {
        if (reader.wire == ProtoReader::kBytes && field.message == message && field.number == number)
          parts.emplace_back(field.type, reader.text);
      }
    }
  }
}

class OnnxModel;

class Session : public Runner {
 public:
  explicit Session(const OnnxModel& model) : model_(model) {}
  void Run(const std::vector<Tensor>& given, Sink& sink) override;

 private:
  const OnnxModel& model_;
  std::vector<OrtValue*> inputs_, outputs_;
};

class OnnxModel : public LoadedModel {
 public:
  explicit OnnxModel(const ModelInfo& model) : info(model) {
    const std::string path = model.directory + "/model.onnx";
    if (!std::filesystem::is_regular_file(path)) throw ArtifactError(path + " does not exist. Export the model again.");
    OrtSessionOptions* made = nullptr;
    Do(kCreateSessionOptions, &made);
    const Owned<OrtSessionOptions, kReleaseSessionOptions> options(made);
    int64_t intra = model.WholeNumber("intra_op_thread_count", 0);
    // By default, ONNX Runtime pins threads to all cores of the machine. Use only the cores available to us.
    if (intra == 0) intra = NumCores();
    Do(kSetSessionLogSeverityLevel, made, kSayNothing);
    Do(kSetIntraOpNumThreads, made, static_cast<int>(intra));
    // Let waiting threads sleep: spinning would take cores away from the server and its clients.
    for (const char* key : {"session.intra_op.allow_spinning", "session.inter_op.allow_spinning"}) {
      Do(kAddSessionConfigEntry, made, key, "0");
    }
    OrtSession* opened = nullptr;
    try {
      const MappedFile file(path);
      CheckFile(file.bytes());
      Do(kCreateSessionFromArray, static_cast<const OrtEnv*>(environment),
         static_cast<const void*>(file.bytes().data()), file.bytes().size(),
         static_cast<const OrtSessionOptions*>(made), &opened);
    } catch (const std::exception& error) {
      throw ArtifactError(path + " cannot be loaded: " + error.what());
    }
    session.reset(opened);
    CheckTensors(path, "inputs", info.inputs,
                 Types(kSessionGetInputCount, kSessionGetInputName, kSessionGetInputTypeInfo), true);
    CheckTensors(path, "outputs", info.outputs,
                 Types(kSessionGetOutputCount, kSessionGetOutputName, kSessionGetOutputTypeInfo), false);
    for (const TensorSpec& spec : info.inputs) input_names.push_back(spec.name.c_str());
    for (const TensorSpec& spec : info.outputs) output_names.push_back(spec.name.c_str());
    OrtMemoryInfo* cpu = nullptr;
    Do(kCreateCpuMemoryInfo, kDeviceAllocator, kDefaultMemory, &cpu);
    memory.reset(cpu);
  }

  std::unique_ptr<Runner> MakeRunner() const override { return std::make_unique<Session>(*this); }

  const ModelInfo info;
  Owned<OrtSession, kReleaseSession> session;
  Owned<OrtMemoryInfo, kReleaseMemoryInfo> memory;
  std::vector<const char*> input_names, output_names;

 private:
  std::map<std::string, std::string> Types(Place count_of, Place name_of, Place type_of) const {
    const OrtSession* opened = session.get();
    size_t count = 0;
    Do(count_of, opened, &count);
    OrtAllocator* allocator = nullptr;
    Do(kGetAllocatorWithDefaultOptions, &allocator);
    std::map<std::string, std::string> types;
    for (size_t i = 0; i < count; ++i) {
      char* name = nullptr;
      Do(name_of, opened, i, allocator, &name);
      std::string& type = types[name];
      Do(kAllocatorFree, allocator, static_cast<void*>(name));
      OrtTypeInfo* about = nullptr;
      Do(type_of, opened, i, &about);
      const Owned<OrtTypeInfo, kReleaseTypeInfo> owned(about);
      const OrtTensorInfo* tensor = nullptr;  // owned by the type
      Do(kCastTypeInfoToTensorInfo, static_cast<const OrtTypeInfo*>(about), &tensor);
      int element = 0;
      if (tensor != nullptr) Do(kGetTensorElementType, tensor, &element);
      type = tensor == nullptr ? "no tensor" : TypeName(kTypes, element);
    }
    return types;
  }
};

void Session::Run(const std::vector<Tensor>& given, Sink& sink) {
  CheckGiven(given, model_.info.inputs);
  struct Values {
    std::vector<OrtValue*>& all;
    ~Values() {
      for (OrtValue* value : all) {
        if (value != nullptr) Call<void>(kReleaseValue, value);
      }
      all.clear();
    }
  };
  const Values inputs{inputs_}, outputs{outputs_};
  for (size_t i = 0; i < given.size(); ++i) {
    const Tensor& tensor = given[i];
    const int64_t shape[] = {tensor.rows, tensor.width};
    inputs_.push_back(nullptr);
    Do(kCreateTensorWithDataAsOrtValue, static_cast<const OrtMemoryInfo*>(model_.memory.get()),
       const_cast<void*>(tensor.data), tensor.num_bytes(), &shape[0], static_cast<size_t>(tensor.rank),
       kTypes[static_cast<size_t>(tensor.dtype)], &inputs_.back());
  }
  outputs_.assign(model_.output_names.size(), nullptr);
  Do(kRun, model_.session.get(), static_cast<const void*>(nullptr), model_.input_names.data(),
     static_cast<OrtValue* const*>(inputs_.data()), inputs_.size(), model_.output_names.data(), outputs_.size(),
     outputs_.data());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    OrtTensorInfo* about = nullptr;
    Do(kGetTensorTypeAndShape, static_cast<const OrtValue*>(outputs_[i]), &about);
    const Owned<OrtTensorInfo, kReleaseTensorInfo> owned(about);
    const auto* info = static_cast<const OrtTensorInfo*>(about);
    int element = 0;
    size_t num_dims = 0;
    Do(kGetTensorElementType, info, &element);
    Do(kGetDimensionsCount, info, &num_dims);
    constexpr size_t kMaxDims = 8;
    int64_t dims[kMaxDims] = {1};
    if (num_dims > kMaxDims || element != kTypes[static_cast<size_t>(model_.info.outputs[i].dtype)]) {
      throw std::runtime_error("'" + model_.info.outputs[i].name + "' has an unexpected type");
    }
    Do(kGetDimensions, info, &dims[0], num_dims);
    int64_t width = 1;
    for (size_t d = 1; d < num_dims; ++d) width *= dims[d];
    void* data = nullptr;
    Do(kGetTensorMutableData, outputs_[i], &data);
    const size_t bytes = static_cast<size_t>(dims[0] * width) * SizeOf(model_.info.outputs[i].dtype);
    void* to = sink.Allocate(i, dims[0], width);
    if (bytes != 0) std::memcpy(to, data, bytes);
  }
}

}  // namespace

const BackendTraits kBackend = {"ONNX Runtime", true};

void OpenBackend(const std::map<std::string, std::string>& options) {
  void* library = OpenLibrary(options, "libonnxruntime.so", false);
  const auto base = reinterpret_cast<const OrtApiBase* (*)()>(FunctionOf(library, "OrtGetApiBase"))();
  functions = base->GetApi(kApiVersion);
  if (functions == nullptr)
    throw ArtifactError(std::string("ONNX Runtime ") + base->GetVersionString() + " is too old");
  Do(kCreateEnv, kSayNothing, "rankline", &environment);
}

std::unique_ptr<LoadedModel> LoadModel(const ModelInfo& step) {
  return LoadBehindWorkflow(
      step, [](const ModelInfo& model) -> std::unique_ptr<LoadedModel> { return std::make_unique<OnnxModel>(model); });
}

}  // namespace rankline
