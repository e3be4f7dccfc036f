// Triton backend `tensorflow`: runs one signature of a SavedModel through TensorFlow's C API. Parameters and their
// defaults are those of `serving/engines/tensorflow/model.py`.
//
// Option of the server's command line: library, path of libtensorflow_cc.so.2.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "backends/tensorflow_operations.h"
#include "mapped_file.h"
#include "triton/engine.h"
#include "triton/workflow.h"

namespace rankline {
namespace {

// --- the part of TensorFlow's C API that is called, as its headers declare it ---

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

// TensorFlow's numbers for types, in the order of Dtype.
constexpr int kTypes[] = {10, 6, 5, 3, 9, 4, 17, 22, 23, 19, 1, 2, 7};

// Codes that tell of the machine or of us, not of the request: unknown, exhausted, precondition, internal.
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

// --- protobuf's wire format, as far as configs and signatures need it ---

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : bytes_(bytes) {}

  // The next field: its number, and its bytes or number. False at the end.
  bool Next() {
    if (bytes_.empty()) return false;
    const uint64_t tag = TakeVarint();
    field = tag >> 3;
    text = {};
    number = 0;
    switch (tag & 7) {
      case 0:
        number = TakeVarint();
        break;
      case 1:
        Take(8);
        break;
      case 2:
        text = Take(TakeVarint());
        break;
      case 5:
        Take(4);
        break;
      default:
        throw ArtifactError("a protobuf that cannot be read");
    }
    return true;
  }

  uint64_t field = 0, number = 0;
  std::string_view text;

 private:
  uint64_t TakeVarint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(Take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw ArtifactError("a protobuf that cannot be read");
  }

  std::string_view Take(uint64_t size) {
    if (size > bytes_.size()) throw ArtifactError("a protobuf that cannot be read");
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
};

// A tensor of a signature, and where it is in the graph.
struct SignatureTensor {
  std::string tensor;  // OPERATION:INDEX
  int dtype = 0;
};
struct Signature {
  std::map<std::string, SignatureTensor> inputs, outputs;
};

// Key and value of an entry of a map.
std::pair<std::string, std::string_view> EntryOf(std::string_view bytes) {
  std::pair<std::string, std::string_view> entry;
  for (ProtoReader reader(bytes); reader.Next();) {
    if (reader.field == 1) entry.first = reader.text;
    if (reader.field == 2) entry.second = reader.text;
  }
  return entry;
}

// Signatures of a MetaGraphDef; numbers of fields are those of meta_graph.proto.
std::map<std::string, Signature> SignaturesOf(std::string_view meta_graph) {
  std::map<std::string, Signature> signatures;
  for (ProtoReader graph(meta_graph); graph.Next();) {
    if (graph.field != 5) continue;
    const auto [name, definition] = EntryOf(graph.text);
    Signature& signature = signatures[name];
    for (ProtoReader reader(definition); reader.Next();) {
      if (reader.field != 1 && reader.field != 2) continue;
      const auto [key, info] = EntryOf(reader.text);
      SignatureTensor& tensor = (reader.field == 1 ? signature.inputs : signature.outputs)[key];
      for (ProtoReader part(info); part.Next();) {
        if (part.field == 1) tensor.tensor = part.text;
        if (part.field == 2) tensor.dtype = static_cast<int>(part.number);
      }
    }
  }
  return signatures;
}

std::map<std::string, std::string> DtypesOf(const std::map<std::string, SignatureTensor>& tensors) {
  std::map<std::string, std::string> dtypes;
  for (const auto& [name, tensor] : tensors) {
    dtypes[name] = "type " + std::to_string(tensor.dtype);
    for (size_t i = 0; i < std::size(kTypes); ++i) {
      if (kTypes[i] == tensor.dtype) dtypes[name] = NameOf(static_cast<Dtype>(i));
    }
  }
  return dtypes;
}

// --- what a SavedModel may do, looked at before any of it runs: `serving/engines/tensorflow/operations.py` says it ---

// A node of a graph or of a function.
struct Node {
  std::string op;
  std::vector<std::string> inputs, calls;
};
struct Graph {
  std::map<std::string, Node> nodes;
  std::map<std::string, std::vector<Node>> functions;
  std::vector<std::string> run, restore;  // tensors and nodes
};

// Fields with this number, in order.
std::vector<std::string_view> FieldsOf(std::string_view bytes, uint64_t field) {
  std::vector<std::string_view> found;
  for (ProtoReader reader(bytes); reader.Next();) {
    if (reader.field == field) found.push_back(reader.text);
  }
  return found;
}

std::string FieldOf(std::string_view bytes, uint64_t field) {
  const std::vector<std::string_view> found = FieldsOf(bytes, field);
  return found.empty() ? std::string() : std::string(found.back());
}

// Of a NodeDef; numbers of fields are those of node_def.proto and attr_value.proto.
std::pair<std::string, Node> NodeOf(std::string_view bytes) {
  std::pair<std::string, Node> found{FieldOf(bytes, 1), {FieldOf(bytes, 2), {}, {}}};
  for (const std::string_view input : FieldsOf(bytes, 3)) found.second.inputs.emplace_back(input);
  for (const std::string_view attribute : FieldsOf(bytes, 5)) {
    const std::string_view value = EntryOf(attribute).second;
    for (const std::string_view function : FieldsOf(value, 10)) found.second.calls.push_back(FieldOf(function, 1));
    for (const std::string_view list : FieldsOf(value, 1)) {
      for (const std::string_view function : FieldsOf(list, 9)) found.second.calls.push_back(FieldOf(function, 1));
    }
  }
  return found;
}

// Of a MetaGraphDef; numbers of fields are those of meta_graph.proto, saver.proto, graph.proto and function.proto.
Graph GraphOf(std::string_view meta_graph) {
  Graph graph;
  for (const std::string_view definition : FieldsOf(meta_graph, 2)) {
    for (const std::string_view node : FieldsOf(definition, 1)) graph.nodes.insert(NodeOf(node));
    for (const std::string_view library : FieldsOf(definition, 2)) {
      for (const std::string_view function : FieldsOf(library, 1)) {
        std::vector<Node>& nodes = graph.functions[FieldOf(FieldOf(function, 1), 1)];
        for (const std::string_view node : FieldsOf(function, 3)) nodes.push_back(NodeOf(node).second);
      }
    }
  }
  for (const std::string_view saver : FieldsOf(meta_graph, 3)) {
    graph.restore.push_back(FieldOf(saver, 1));
    graph.restore.push_back(FieldOf(saver, 3));
  }
  for (const std::string_view entry : FieldsOf(meta_graph, 4)) {
    const auto [key, collection] = EntryOf(entry);
    if (key != "saved_model_main_op" && key != "legacy_init_op") continue;
    for (const std::string_view list : FieldsOf(collection, 1)) {
      for (const std::string_view name : FieldsOf(list, 1)) graph.run.emplace_back(name);
    }
  }
  for (const auto& [name, signature] : SignaturesOf(meta_graph)) {
    for (const auto& [key, tensor] : signature.inputs) graph.run.push_back(tensor.tensor);
    for (const auto& [key, tensor] : signature.outputs) graph.run.push_back(tensor.tensor);
  }
  return graph;
}

// Operations that tensors and nodes of a graph need, and those of the functions that they call.
std::set<std::string> RunBy(const Graph& graph, const std::vector<std::string>& roots) {
  std::set<std::string> found, entered, reached;
  std::vector<std::pair<const Node*, bool>> waiting;  // and whether it is of no function
  const auto reach = [&](const std::string& tensor) {
    const size_t begin = tensor.compare(0, 1, "^") == 0;
    const std::string name = tensor.substr(begin, tensor.find(':') - begin);
    const auto node = graph.nodes.find(name);
    if (node != graph.nodes.end() && reached.insert(name).second) waiting.emplace_back(&node->second, true);
  };
  for (const std::string& root : roots) reach(root);
  while (!waiting.empty()) {
    const auto [node, is_outermost] = waiting.back();
    waiting.pop_back();
    if (is_outermost) {
      for (const std::string& input : node->inputs) reach(input);
    }
    std::vector<std::string> calls = node->calls;
    calls.push_back(node->op);
    for (const std::string& name : calls) {
      const auto function = graph.functions.find(name);
      if (function == graph.functions.end() || !entered.insert(name).second) continue;
      for (const Node& inner : function->second) waiting.emplace_back(&inner, false);
    }
    if (graph.functions.count(node->op) == 0) found.insert(node->op);
  }
  return found;
}

template <size_t N>
bool IsAmong(const std::string& name, const char* const (&list)[N]) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

// Whether an operation only computes, or keeps variables and tables.
bool IsTaken(const std::string& name) {
  static const std::map<std::string, bool> is_stateful = [] {  // OpList and OpDef of op_def.proto
    std::map<std::string, bool> known;
    const std::unique_ptr<TF_Buffer, void (*)(TF_Buffer*)> all(tf.GetAllOpList(), tf.DeleteBuffer);
    for (const std::string_view op : FieldsOf({static_cast<const char*>(all->data), all->length}, 1)) {
      bool& stateful = known[FieldOf(op, 1)];
      for (ProtoReader reader(op); reader.Next();) stateful |= reader.field == 17 && reader.number != 0;
    }
    return known;
  }();
  const auto found = is_stateful.find(name);
  if (found == is_stateful.end() || IsAmong(name, kOutside)) return false;
  const auto begins = [&](const char* kind) { return name.compare(0, std::strlen(kind), kind) == 0; };
  if (IsAmong(name, kKeeping) || std::any_of(std::begin(kKeepingKinds), std::end(kKeepingKinds), begins)) return true;
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return !found->second && !std::any_of(std::begin(kIdle), std::end(kIdle), has);
}

// What is run to load a graph of a SavedModel or to score, and is more than computing.
std::set<std::string> Refused(const Graph& graph) {
  std::set<std::string> refused;
  for (const std::string& op : RunBy(graph, graph.run)) {
    if (!IsTaken(op)) refused.insert(op);
  }
  for (const std::string& op : RunBy(graph, graph.restore)) {
    if (!IsTaken(op) && !IsAmong(op, kRestoring)) refused.insert(op);
  }
  return refused;
}

// Throws ArtifactError: it does more than compute, or cannot be read.
void CheckServed(const std::string& directory, const std::string& tag) {
  std::set<std::string> refused;
  try {
    const MappedFile file(directory + "/saved_model.pb");
    for (const std::string_view meta_graph : FieldsOf(file.bytes(), 2)) {
      const std::string about = FieldOf(meta_graph, 1);
      const std::vector<std::string_view> tags = FieldsOf(about, 4);
      if (std::find(tags.begin(), tags.end(), tag) != tags.end()) refused.merge(Refused(GraphOf(meta_graph)));
    }
  } catch (const ArtifactError& error) {
    throw ArtifactError(directory + " cannot be loaded under the tag '" + tag + "': " + error.what());
  }
  if (refused.empty()) return;
  std::string named;
  for (const std::string& op : refused) named += (named.empty() ? "'" : ", '") + op + "'";
  throw ArtifactError(directory + " runs the operations [" + named +
                      "], which do more than compute. Only what computes, looks up and keeps variables is served.");
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
    const std::string tag = model.Parameter("TF_GRAPH_TAG", "serve"),
                      name = model.Parameter("TF_SIGNATURE_DEF", "serving_default");
    if (!std::filesystem::is_regular_file(directory + "/saved_model.pb")) {
      throw ArtifactError(directory + " holds no SavedModel (no saved_model.pb). Export it again.");
    }
    CheckServed(directory, tag);
    const Status status;
    const std::unique_ptr<TF_SessionOptions, void (*)(TF_SessionOptions*)> options(tf.NewSessionOptions(),
                                                                                   tf.DeleteSessionOptions);
    const std::string config = Config(model);
    tf.SetConfig(options.get(), config.data(), config.size(), status.get());
    const std::unique_ptr<TF_Buffer, void (*)(TF_Buffer*)> meta_graph(tf.NewBuffer(), tf.DeleteBuffer);
    const char* tags[] = {tag.c_str()};
    graph = tf.NewGraph();
    session = tf.LoadSessionFromSavedModel(options.get(), nullptr, directory.c_str(), tags, 1, graph, meta_graph.get(),
                                           status.get());
    if (status.code() != 0) {
      tf.DeleteGraph(graph);
      throw ArtifactError(directory + " cannot be loaded under the tag '" + tag + "': " + status.what());
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
  // A ConfigProto: no GPU, threads inside of operations and beside them. Fields are those of config.proto.
  static std::string Config(const ModelInfo& model) {
    const auto intra = static_cast<uint64_t>(model.WholeNumber("INTRA_OP_THREADS", 0));
    const auto inter = static_cast<uint64_t>(model.WholeNumber("INTER_OP_THREADS", -1));
    const std::string no_gpu = std::string("\x0a\x03GPU\x10", 6) + '\0';  // an entry of device_count: "GPU" → 0
    return "\x0a" + Varint(no_gpu.size()) + no_gpu + "\x10" + Varint(intra) + "\x28" + Varint(inter);
  }

  void Bind(const std::map<std::string, Signature>& signatures, const std::string& name, const std::string& directory) {
    const auto found = signatures.find(name);
    if (found == signatures.end()) {
      std::string available;
      for (const auto& [key, signature] : signatures) {
        if (key.compare(0, 2, "__") != 0) available += (available.empty() ? "'" : ", '") + key + "'";
      }
      throw ArtifactError(directory + " has no signature '" + name + "'. Available: [" + available + "].");
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
  // Tensors are views of the request's memory, where that is aligned as TensorFlow wants it; it copies others itself.
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
    if (tensor.data == nullptr) throw RequestError("input '" + model_.info.inputs[i].name + "' is missing");
    if (tensor.dtype == Dtype::kString)
      throw RequestError("input '" + model_.info.inputs[i].name + "' holds strings, which are not supported");
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
      throw std::runtime_error("'" + model_.info.outputs[i].name + "' came out in another type");
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
