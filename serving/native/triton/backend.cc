#include "triton/backend.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <unordered_map>

#include "plan/scratch.h"
#include "triton/api.h"
#include "triton/joining.h"
#include "triton/names.h"

namespace rankline {
namespace {

const char* const kCandidates = "CANDIDATES";
const char* const kMaxListLength = "MAX_LIST_LENGTH";
const char* const kManifest = "MANIFEST";
constexpr int64_t kMaxValues = int64_t{1} << 40;  // of a tensor; more than any machine can hold
constexpr int64_t kMaxRows = int64_t{1} << 26;    // of a request, even if the rows have no values
constexpr double kMaxWarmUpBytes = 1 << 24;       // of inputs; a network may allocate fifty times as much
constexpr int64_t kWarmUpRows[] = {1, 16, 256, 4096, 16384};

// Triton's type numbers, and names in a config, in the order of Dtype.
constexpr TRITONSERVER_DataType kDataTypes[] = {1, 6, 7, 8, 9, 2, 3, 4, 5, 10, 11, 12, 13};
constexpr const char* kConfigTypes[] = {"TYPE_BOOL",  "TYPE_INT8",   "TYPE_INT16",  "TYPE_INT32",  "TYPE_INT64",
                                        "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_FP16",
                                        "TYPE_FP32",  "TYPE_FP64",   "TYPE_STRING"};

uint64_t Now() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// Throws an exception for an error of Triton.
void Check(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  const std::string what = TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  throw std::runtime_error(what);
}

// Discards an error.
void Ignore(TRITONSERVER_Error* error) {
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
}

// Converts exceptions to a Triton error, since none may leave a function of the C API.
template <typename F>
TRITONSERVER_Error* Guarded(F function) noexcept {
  try {
    function();
    return nullptr;
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, error.what());
  } catch (...) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "an unknown error");
  }
}

Json TakeJson(TRITONSERVER_Message* message) {
  const char* text = nullptr;
  size_t size = 0;
  const std::unique_ptr<TRITONSERVER_Message, void (*)(TRITONSERVER_Message*)> owned(
      message, [](TRITONSERVER_Message* owner) { Ignore(TRITONSERVER_MessageDelete(owner)); });
  Check(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  return Json::Parse({text, size});
}

int64_t NumberIn(const Json& value) {
  return value.is_string() ? std::stoll(value.string()) : value.integer();  // protobuf's JSON has either
}

std::vector<TensorSpec> TensorsIn(const Json& entries) {
  std::vector<TensorSpec> specs;
  if (entries.is_null()) return specs;
  for (const Json& entry : entries.array()) {
    TensorSpec spec;
    spec.name = entry["name"].string();
    const std::string& type = entry["data_type"].string();
    const auto* known = std::find(std::begin(kConfigTypes), std::end(kConfigTypes), type);
    if (known == std::end(kConfigTypes))
      throw ArtifactError("'" + spec.name + "' is of type " + type + ", which is not supported");
    spec.dtype = static_cast<Dtype>(known - std::begin(kConfigTypes));
    for (const Json& dim : entry["dims"].array()) {
      const int64_t length = NumberIn(dim);
      if (length > 0 && spec.width > kMaxValues / length)
        throw ArtifactError("'" + spec.name + "' has more values than fit in memory");
      spec.width = length < 0 || spec.width < 0 ? kAnyWidth : spec.width * length;
    }
    const Json& optional = entry.Get("optional");
    spec.optional = !optional.is_null() && optional.boolean();
    specs.push_back(std::move(spec));
  }
  return specs;
}

class Model {
 public:
  explicit Model(TRITONBACKEND_Model* model) {
    TRITONSERVER_Message* message = nullptr;
    Check(TRITONBACKEND_ModelConfig(model, 1, &message));
    const Json config = TakeJson(message);
    TRITONBACKEND_ArtifactType type = 0;
    const char* location = nullptr;
    uint64_t version = 0;
    Check(TRITONBACKEND_ModelRepository(model, &type, &location));
    Check(TRITONBACKEND_ModelVersion(model, &version));
    info.directory = std::string(location) + "/" + std::to_string(version);
    info.inputs = TensorsIn(config.Get("input"));
    info.outputs = TensorsIn(config.Get("output"));
    info.max_batch_size = NumberIn(config["max_batch_size"]);
    if (!config.Get("parameters").is_null()) {
      for (const auto& [name, value] : config["parameters"].object())
        info.parameters[name] = value["string_value"].string();
    }
    ReadCandidates();
    const std::string manifest = info.Parameter(kManifest, "");
    if (!manifest.empty()) CheckStep(location, manifest);
    loaded = LoadModel(info);
  }

  ModelInfo info;
  Candidates candidates;
  std::unique_ptr<LoadedModel> loaded;

 private:
  void ReadCandidates() {
    const std::string names = info.Parameter(kCandidates, "");
    if (names.empty()) return;
    candidates.inputs.assign(info.inputs.size(), false);
    std::unordered_map<std::string_view, size_t> positions;
    for (size_t i = 0; i < info.inputs.size(); ++i) positions[info.inputs[i].name] = i;
    std::vector<std::string> unknown;
    for (const std::string& name : NamesIn(names)) {
      const auto found = positions.find(name);
      if (found == positions.end() || info.inputs[found->second].width != kAnyWidth ||
          info.inputs[found->second].optional) {
        unknown.push_back(name);
        continue;
      }
      candidates.inputs[found->second] = true;
      const auto mask = positions.find(name + std::string(kMask));
      if (mask != positions.end()) candidates.inputs[mask->second] = true;
    }
    if (!unknown.empty()) {
      throw ArtifactError(std::string("parameter ") + kCandidates + " names " + Listed(unknown) +
                          ", expected inputs of dims [-1].");
    }
    for (const TensorSpec& spec : info.outputs) {
      candidates.outputs.push_back(spec.width == kAnyWidth && !EndsWith(spec.name, kValues));
    }
    candidates.max_per_row = info.WholeNumber(kMaxListLength, 0);
    candidates.max_scores = std::max<int64_t>(info.max_batch_size, 1);
  }
};

// Parses strings in Triton's wire format: each has a 4-byte length prefix.
const void* StringsIn(std::string_view bytes, int64_t count, const std::string& name, Scratch& scratch) {
  const auto check_there_are = [&](int64_t more) {
    if (bytes.size() / sizeof(uint32_t) < static_cast<size_t>(more))
      throw RequestError("input '" + name + "' ends before its " + std::to_string(count) + " strings");
  };
  check_there_are(count);  // before allocating memory for them
  auto* strings = scratch.Take<std::string_view>(count);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t length = 0;
    check_there_are(1);
    std::memcpy(&length, bytes.data(), sizeof(length));
    bytes.remove_prefix(sizeof(length));
    if (bytes.size() < length)
      throw RequestError("input '" + name + "' has a string that extends beyond the end of the input");
    new (strings + i) std::string_view(bytes.data(), length);
    bytes.remove_prefix(length);
  }
  if (!bytes.empty())
    throw RequestError("input '" + name + "' has extra bytes after its " + std::to_string(count) + " strings");
  return strings;
}

// A response with outputs in memory from Triton.
class ResponseSink : public Sink {
 public:
  ResponseSink(TRITONBACKEND_Request* request, const Model& model, Scratch& scratch, int64_t num_candidates)
      : request_(request), model_(model), scratch_(scratch), num_candidates_(num_candidates) {
    Check(TRITONBACKEND_ResponseNew(&response_, request));
  }
  ResponseSink(const ResponseSink&) = delete;
  ResponseSink& operator=(const ResponseSink&) = delete;

  void* Allocate(size_t output, int64_t rows, int64_t width) override {
    const TensorSpec& spec = model_.info.outputs[output];
    if (model_.candidates.any() && model_.candidates.outputs[output] && width != num_candidates_) {
      throw std::runtime_error("'" + spec.name + "' has the shape [" + std::to_string(rows) + ", " +
                               std::to_string(width) + "] for " + std::to_string(num_candidates_) + " candidates");
    }
    const size_t bytes = static_cast<size_t>(rows * width) * SizeOf(spec.dtype);
    if (!IsAskedFor(spec.name)) return scratch_.TakeBytes(bytes);
    const int64_t shape[] = {rows, width};
    TRITONBACKEND_Output* made = nullptr;
    Check(TRITONBACKEND_ResponseOutput(response_, &made, spec.name.c_str(), kDataTypes[static_cast<size_t>(spec.dtype)],
                                       shape, 2));
    void* buffer = nullptr;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    Check(TRITONBACKEND_OutputBuffer(made, &buffer, bytes, &memory, &memory_id));
    if (memory == TRITONSERVER_MEMORY_GPU) throw std::runtime_error("outputs in GPU memory are not supported");
    return buffer;
  }

  // Sends the response, with or without an error. Call this exactly once.
  void Send(TRITONSERVER_Error* error) {
    Ignore(TRITONBACKEND_ResponseSend(response_, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    Ignore(error);
  }

  int64_t num_candidates() const { return num_candidates_; }

 private:
  bool IsAskedFor(const std::string& name) const {
    uint32_t count = 0;
    Check(TRITONBACKEND_RequestOutputCount(request_, &count));
    if (count == model_.info.outputs.size()) return true;
    for (uint32_t i = 0; i < count; ++i) {
      const char* asked = nullptr;
      Check(TRITONBACKEND_RequestOutputName(request_, i, &asked));
      if (name == asked) return true;
    }
    return false;
  }

  TRITONBACKEND_Request* request_;
  const Model& model_;
  Scratch& scratch_;
  int64_t num_candidates_;
  TRITONBACKEND_Response* response_ = nullptr;
};

// Holds outputs in memory, for joined requests (to copy from) or a warm-up.
class JoinedSink : public Sink {
 public:
  JoinedSink(const Model& model, Scratch& scratch)
      : outputs(model.info.outputs.size()), model_(model), scratch_(scratch) {}

  void* Allocate(size_t output, int64_t rows, int64_t width) override {
    Tensor& tensor = outputs.at(output);
    tensor = {model_.info.outputs[output].dtype, rows, width, nullptr};
    void* memory = scratch_.TakeBytes(tensor.num_bytes());
    tensor.data = memory;
    return memory;
  }

  std::vector<Tensor> outputs;

 private:
  const Model& model_;
  Scratch& scratch_;
};

// One model instance: Triton calls it from one thread at a time.
class Instance {
 public:
  explicit Instance(const Model& model) : model_(model), runner_(model.loaded->MakeRunner()) { WarmUp(); }

  void Execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count) {
    const uint64_t begun = Now();
    scratch_.Reset();
    if (given_.size() < count) given_.resize(count);
    succeeded_.assign(count, false);
    waiting_.clear();
    for (uint32_t i = 0; i < count; ++i) {
      bool is_cancelled = false;
      Ignore(TRITONBACKEND_RequestIsCancelled(requests[i], &is_cancelled));
      if (is_cancelled) {
        Refuse(requests[i], {TRITONSERVER_ERROR_CANCELLED, "the request was cancelled"});
      } else if (const auto failure = Tried([&] { Read(requests[i], given_[i]); })) {
        Refuse(requests[i], *failure);
      } else {
        waiting_.push_back(i);
      }
    }
    const uint64_t compute_begun = Now();
    sending_ns_ = 0;
    RunAll(requests);
    const uint64_t compute_ended = Now() - sending_ns_;  // so that sending, which takes as long, counts as output
    int64_t rows = 0;
    for (const uint32_t i : waiting_) rows += succeeded_[i] ? RowsOf(given_[i]) : 0;
    const uint64_t ended = Now();
    for (uint32_t i = 0; i < count; ++i) {
      Ignore(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], succeeded_[i], begun, compute_begun,
                                                         compute_ended, ended));
      Ignore(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
    }
    if (rows > 0) {
      Ignore(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, static_cast<uint64_t>(rows), begun,
                                                              compute_begun, compute_ended, ended));
    }
  }

 private:
  // The reason why a request could not be run.
  struct Failure {
    TRITONSERVER_Error_Code code;
    std::string what;

    TRITONSERVER_Error* AsError() const { return TRITONSERVER_ErrorNew(code, what.c_str()); }
  };

  template <typename F>
  std::optional<Failure> Tried(F function) const {
    const auto said = [this](const char* what) {
      return std::string(model_.loaded->runs()) + " could not run the request: " + what;
    };
    try {
      function();
      return std::nullopt;
    } catch (const RequestError& error) {
      return Failure{TRITONSERVER_ERROR_INVALID_ARG, said(error.what())};
    } catch (const std::bad_alloc&) {
      return Failure{TRITONSERVER_ERROR_INTERNAL, said("there is not enough memory")};
    } catch (const std::exception& error) {
      return Failure{TRITONSERVER_ERROR_INTERNAL, said(error.what())};
    }
  }

  static void Refuse(TRITONBACKEND_Request* request, const Failure& failure) {
    TRITONBACKEND_Response* response = nullptr;
    TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, request);
    if (failed != nullptr) return Ignore(failed);
    TRITONSERVER_Error* error = failure.AsError();
    Ignore(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    TRITONSERVER_ErrorDelete(error);
  }

  // Looks up inputs by name, because Triton walks over all earlier inputs to find one by index.
  void Read(TRITONBACKEND_Request* request, Request& given) {
    const std::vector<TensorSpec>& specs = model_.info.inputs;
    given.assign(specs.size(), Tensor{});
    uint32_t count = 0, found = 0;
    Check(TRITONBACKEND_RequestInputCount(request, &count));
    for (const bool optional : {false, true}) {
      for (size_t i = 0; i < specs.size() && found < count; ++i) {
        if (specs[i].optional != optional) continue;
        TRITONBACKEND_Input* input = nullptr;
        if (TRITONSERVER_Error* missing = TRITONBACKEND_RequestInput(request, specs[i].name.c_str(), &input)) {
          Ignore(missing);
          continue;
        }
        given[i] = ReadInput(input, specs[i]);
        ++found;
      }
    }
    if (found < count) throw RequestError(std::to_string(count - found) + " inputs do not belong to this model");
  }

  Tensor ReadInput(TRITONBACKEND_Input* input, const TensorSpec& spec) {
    const char* name = nullptr;
    TRITONSERVER_DataType type = 0;
    const int64_t* shape = nullptr;
    uint32_t dims = 0, buffers = 0;
    uint64_t bytes = 0;
    Check(TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &bytes, &buffers));
    if (type != kDataTypes[static_cast<size_t>(spec.dtype)])
      throw RequestError("input '" + spec.name + "' is not " + NameOf(spec.dtype));
    if (dims < 1 || dims > 2) {
      throw RequestError("input '" + spec.name + "' has " + std::to_string(dims) + " dimensions, expected 1 or 2");
    }
    const int64_t width = dims == 2 ? shape[1] : 1;
    if (shape[0] < 0 || shape[0] > kMaxRows || width < 0 || width > kMaxValues / std::max<int64_t>(shape[0], 1)) {
      throw RequestError("input '" + spec.name + "' has the shape [" + std::to_string(shape[0]) + ", " +
                         std::to_string(width) + "]");
    }
    if (model_.info.max_batch_size > 0 && spec.width != kAnyWidth && width != spec.width) {
      throw RequestError("input '" + spec.name + "' has " + std::to_string(width) + " values per row, expected " +
                         std::to_string(spec.width));
    }
    Tensor tensor = {spec.dtype, shape[0], width, nullptr, static_cast<int>(dims)};
    const std::string_view held = BytesOf(input, buffers, bytes, spec.dtype);
    if (spec.dtype == Dtype::kString) {
      tensor.data = StringsIn(held, tensor.rows * tensor.width, spec.name, scratch_);
    } else {
      if (held.size() != tensor.num_bytes())
        throw RequestError("input '" + spec.name + "' has a size that does not match its shape");
      tensor.data = held.data();
    }
    return tensor;
  }

  // Returns the contiguous bytes of an input, aligned for its type.
  std::string_view BytesOf(TRITONBACKEND_Input* input, uint32_t buffers, uint64_t bytes, Dtype dtype) {
    const void* buffer = "";
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    uint64_t size = 0;
    if (bytes == 0) return {scratch_.Take<char>(1), bytes};
    if (buffers == 1) {
      Check(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &memory, &memory_id));
      CheckMemory(memory);
      const bool aligned = dtype == Dtype::kString || reinterpret_cast<uintptr_t>(buffer) % SizeOf(dtype) == 0;
      if (size == bytes && aligned) return {static_cast<const char*>(buffer), size};
    }
    auto* whole = scratch_.Take<char>(static_cast<int64_t>(bytes));
    uint64_t filled = 0;
    for (uint32_t i = 0; i < buffers; ++i) {
      Check(TRITONBACKEND_InputBuffer(input, i, &buffer, &size, &memory, &memory_id));
      CheckMemory(memory);
      if (size > bytes - filled) throw RequestError("the size of an input differs from its declared size");
      std::memcpy(whole + filled, buffer, size);
      filled += size;
    }
    if (filled != bytes) throw RequestError("the size of an input differs from its declared size");
    return {whole, bytes};
  }

  static void CheckMemory(TRITONSERVER_MemoryType memory) {
    if (memory == TRITONSERVER_MEMORY_GPU) throw std::runtime_error("inputs in GPU memory are not supported");
  }

  void RunAll(TRITONBACKEND_Request** requests) {
    if (!kBackend.joins || waiting_.size() == 1 || model_.info.max_batch_size == 0) {
      for (const uint32_t i : waiting_) RunAlone(requests, i);
      return;
    }
    std::vector<const Request*> batches;
    batches.reserve(waiting_.size());
    for (const uint32_t i : waiting_) batches.push_back(&given_[i]);
    for (const std::vector<size_t>& group : Groups(batches, model_.info.inputs, model_.candidates)) {
      if (group.size() == 1 || !RunTogether(requests, group)) {
        for (const size_t number : group) RunAlone(requests, waiting_[number]);
      }
    }
  }

  void RunAlone(TRITONBACKEND_Request** requests, uint32_t i) {
    Answer(requests[i], i, [&](ResponseSink& sink) { runner_->Run(given_[i], sink); });
  }

  // Sends the outputs that a function writes into a sink, or its error.
  template <typename F>
  void Answer(TRITONBACKEND_Request* request, uint32_t i, F function) {
    std::optional<ResponseSink> sink;
    const auto failure = Tried([&] {
      const int64_t count = model_.candidates.any() ? model_.candidates.CountOf(given_[i], model_.info.inputs) : 1;
      sink.emplace(request, model_, scratch_, count);
      function(*sink);
    });
    succeeded_[i] = !failure;
    const uint64_t begun = Now();
    if (sink)
      sink->Send(failure ? failure->AsError() : nullptr);
    else
      Refuse(request, *failure);
    sending_ns_ += Now() - begun;
  }

  // Returns whether the requests could be run as one; if not, no response was sent.
  bool RunTogether(TRITONBACKEND_Request** requests, const std::vector<size_t>& group) {
    JoinedSink sink(model_, scratch_);
    int64_t most = 1, rows = 0;
    try {
      std::vector<const Request*> parts;
      for (const size_t number : group) {
        parts.push_back(&given_[waiting_[number]]);
        if (model_.candidates.any())
          most = std::max(most, model_.candidates.CountOf(*parts.back(), model_.info.inputs));
        rows += RowsOf(*parts.back());
      }
      runner_->Run(Join(parts, model_.info.inputs, model_.candidates, scratch_), sink);
      for (size_t o = 0; o < sink.outputs.size(); ++o) {
        const Tensor& output = sink.outputs[o];
        const bool of_candidates = model_.candidates.any() && model_.candidates.outputs[o];
        if (output.data == nullptr || output.rows != rows || (of_candidates && output.width != most)) {
          throw std::runtime_error("outputs do not match the shape of the input rows");
        }
      }
    } catch (const std::exception& error) {
      const std::string why =
          std::to_string(group.size()) + " requests could not be joined, running each alone: " + error.what();
      Ignore(TRITONSERVER_LogMessage(TRITONSERVER_LOG_VERBOSE, __FILE__, __LINE__, why.c_str()));
      return false;
    }
    int64_t first = 0;
    for (const size_t number : group) {
      const uint32_t i = waiting_[number];
      Answer(requests[i], i, [&](ResponseSink& own) { CopyRows(sink.outputs, first, RowsOf(given_[i]), own); });
      first += RowsOf(given_[i]);
    }
    return true;
  }

  // Copies a request's rows of the joined outputs, without padded candidates.
  void CopyRows(const std::vector<Tensor>& outputs, int64_t first, int64_t rows, ResponseSink& sink) const {
    for (size_t o = 0; o < outputs.size(); ++o) {
      const Tensor& output = outputs[o];
      const bool of_candidates = model_.candidates.any() && model_.candidates.outputs[o];
      const int64_t width = of_candidates ? sink.num_candidates() : output.width;
      const size_t item = SizeOf(output.dtype), own = static_cast<size_t>(width) * item,
                   all = static_cast<size_t>(output.width) * item;
      const auto* from = static_cast<const char*>(output.data) + static_cast<size_t>(first) * all;
      auto* to = static_cast<char*>(sink.Allocate(o, rows, width));
      for (int64_t row = 0; row < rows; ++row, from += all, to += own) std::memcpy(to, from, own);
    }
  }

  // Runs once per size, so that no request pays for optimization or the first allocation.
  void WarmUp() {
    for (const int64_t most : kWarmUpRows) {
      const int64_t rows = std::min(most, std::max<int64_t>(model_.info.max_batch_size, 1));
      double bytes = 0;
      for (const TensorSpec& spec : model_.info.inputs) {
        bytes += static_cast<double>(rows) * static_cast<double>(std::max<int64_t>(spec.width, 1)) *
                 static_cast<double>(SizeOf(spec.dtype));
      }
      if (bytes > kMaxWarmUpBytes) return;
      Scratch scratch;
      Request zeros;
      for (const TensorSpec& spec : model_.info.inputs) {
        const int64_t width = std::max<int64_t>(spec.width, 1);
        Tensor tensor{spec.dtype, rows, width, nullptr};
        if (!(spec.optional && spec.dtype == Dtype::kBool && EndsWith(spec.name, kMask))) {
          void* memory = scratch.TakeBytes(tensor.num_bytes());
          std::memset(memory, 0, tensor.num_bytes());
          tensor.data = memory;
        }
        zeros.push_back(tensor);
      }
      try {
        JoinedSink sink(model_, scratch);
        runner_->Run(zeros, sink);
      } catch (const std::exception& error) {  // a sound model may refuse rows of zeros
        const std::string what = "warm-up with " + std::to_string(rows) + " rows of zeros failed: " + error.what();
        Ignore(TRITONSERVER_LogMessage(TRITONSERVER_LOG_WARN, __FILE__, __LINE__, what.c_str()));
        return;
      }
      if (rows < most) return;
    }
  }

  const Model& model_;
  std::unique_ptr<Runner> runner_;
  Scratch scratch_;
  std::vector<Request> given_;
  std::vector<bool> succeeded_;
  uint64_t sending_ns_ = 0;
  std::vector<uint32_t> waiting_;
};

template <typename T, typename Owner>
T& StateOf(TRITONSERVER_Error* (*get)(Owner*, void**), Owner* owner) {
  void* state = nullptr;
  Check(get(owner, &state));
  return *static_cast<T*>(state);
}

}  // namespace

const char* LoadedModel::runs() const { return kBackend.runs; }

std::string ModelInfo::Parameter(const std::string& name, const std::string& otherwise) const {
  const auto found = parameters.find(name);
  return found == parameters.end() ? otherwise : found->second;
}

int64_t ModelInfo::WholeNumber(const std::string& name, int64_t otherwise) const {
  const auto found = parameters.find(name);
  if (found == parameters.end()) return otherwise;
  int64_t number = 0;
  const char *begin = found->second.data(), *end = begin + found->second.size();
  const auto read = std::from_chars(begin, end, number);
  if (read.ec != std::errc() || read.ptr != end) {
    throw ArtifactError("parameter " + name + " is '" + found->second + "', expected an integer.");
  }
  return number;
}

}  // namespace rankline

// --- functions that Triton calls ---

#define RANKLINE_EXPORT extern "C" __attribute__((visibility("default"))) TRITONSERVER_Error*

RANKLINE_EXPORT TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  return rankline::Guarded([&] {
    uint32_t major = 0, minor = 0;
    rankline::Check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != 1)
      throw std::runtime_error("the server has version " + std::to_string(major) + " of the backend API, expected 1");
    TRITONSERVER_Message* message = nullptr;
    rankline::Check(TRITONBACKEND_BackendConfig(backend, &message));
    // The server owns this message.
    const char* text = nullptr;
    size_t size = 0;
    rankline::Check(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
    const rankline::Json config = rankline::Json::Parse({text, size});
    std::map<std::string, std::string> options;
    if (!config.Get("cmdline").is_null()) {
      for (const auto& [name, value] : config["cmdline"].object()) options[name] = value.string();
    }
    rankline::OpenBackend(options);
  });
}

RANKLINE_EXPORT TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return rankline::Guarded([&] {
    auto made = std::make_unique<rankline::Model>(model);
    rankline::Check(TRITONBACKEND_ModelSetState(model, made.get()));
    [[maybe_unused]] const auto* kept_by_triton = made.release();
  });
}

RANKLINE_EXPORT TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return rankline::Guarded([&] { delete &rankline::StateOf<rankline::Model>(TRITONBACKEND_ModelState, model); });
}

RANKLINE_EXPORT TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return rankline::Guarded([&] {
    TRITONBACKEND_Model* model = nullptr;
    rankline::Check(TRITONBACKEND_ModelInstanceModel(instance, &model));
    auto made =
        std::make_unique<rankline::Instance>(rankline::StateOf<rankline::Model>(TRITONBACKEND_ModelState, model));
    rankline::Check(TRITONBACKEND_ModelInstanceSetState(instance, made.get()));
    [[maybe_unused]] const auto* kept_by_triton = made.release();
  });
}

RANKLINE_EXPORT TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return rankline::Guarded(
      [&] { delete &rankline::StateOf<rankline::Instance>(TRITONBACKEND_ModelInstanceState, instance); });
}

RANKLINE_EXPORT TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                   TRITONBACKEND_Request** requests, const uint32_t count) {
  return rankline::Guarded([&] {
    rankline::StateOf<rankline::Instance>(TRITONBACKEND_ModelInstanceState, instance)
        .Execute(instance, requests, count);
  });
}
