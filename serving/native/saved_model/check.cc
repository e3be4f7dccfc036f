#include "saved_model/check.h"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <filesystem>
#include <regex>
#include <set>
#include <utility>
#include <vector>

#include "backends/tensorflow_operations.h"
#include "mapped_file.h"
#include "protobuf.h"
#include "saved_model/fields.h"
#include "tensor.h"
#include "triton/names.h"

namespace rankline {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxDepth = 100;            // protobuf's own limit
constexpr double kMaxElements = 1 << 25;  // of constants, in addition to elements stored in the file
constexpr double kMaxNodes = 1 << 18;     // of a graph, counting functions at each call

// Returns the undecoded key of a map entry.
std::string KeyOf(std::string_view entry) {
  ProtoReader reader(entry);
  if (!reader.Next() || reader.field != 1) throw ArtifactError("a map has no key");
  return std::to_string(static_cast<uint32_t>(reader.number)) + std::string(reader.text);
}

// Returns the key and value of a map entry.
std::pair<std::string, std::string_view> EntryOf(std::string_view bytes) {
  std::pair<std::string, std::string_view> entry;
  for (ProtoReader reader(bytes); reader.Next();) {
    if (reader.field == 1) entry.first = reader.text;
    if (reader.field == 2) entry.second = reader.text;
  }
  return entry;
}

// Refuses duplicate and unknown fields, which readers of the message could interpret in different ways.
void CheckMessage(std::string_view bytes, uint8_t message, int depth = 0) {
  if (depth > kMaxDepth) throw ArtifactError("messages are nested too deeply");
  std::bitset<256> seen;
  std::set<std::pair<uint64_t, std::string>> keys;
  for (ProtoReader reader(bytes); reader.Next();) {
    const std::pair<uint64_t, uint64_t> wanted{message, reader.field};
    const auto* field =
        std::lower_bound(std::begin(kFields), std::end(kFields), wanted, [](const ProtoField& known, const auto& key) {
          return std::pair<uint64_t, uint64_t>(known.message, known.number) < key;
        });
    if (field == std::end(kFields) || field->message != message || field->number != reader.field) {
      throw ArtifactError("a field is unknown");
    }
    if (field->wire != reader.wire) throw ArtifactError("a field has another type");
    if (field->type != kNoMessage) CheckMessage(reader.text, field->type, depth + 1);
    if (field->slot == kMap) {
      if (!keys.emplace(field->number, KeyOf(reader.text)).second) throw ArtifactError("a key is repeated");
    } else if (field->slot != kRepeated) {
      if (seen[field->slot]) throw ArtifactError("a field is repeated");
      seen.set(field->slot);
    }
  }
}

// A node of a graph or function.
struct Node {
  std::string op;
  std::vector<std::string> inputs, calls;  // `op` may name a function
  double num_elements = 0;                 // of constants
};
struct Graph {
  // Visits all nodes, including those of functions, which TensorFlow all reads when it loads a graph.
  template <typename Visit>
  void ForEachNode(const Visit& visit) const {
    std::for_each(nodes.begin(), nodes.end(), visit);
    for (const auto& [name, inner] : functions) std::for_each(inner.begin(), inner.end(), visit);
  }

  std::vector<Node> nodes;
  std::map<std::string, size_t> places;  // indices of nodes by name
  std::map<std::string, std::vector<Node>> functions;
  std::vector<std::string> run, restore;  // tensors and nodes
};

// Returns the fields with this number, in order.
std::vector<std::string_view> FieldsOf(std::string_view bytes, uint64_t field) {
  std::vector<std::string_view> found;
  for (ProtoReader reader(bytes); reader.Next();) {
    if (reader.field == field) found.push_back(reader.text);
  }
  return found;
}

// Returns an optional field, or an empty view.
std::string_view FieldOf(std::string_view bytes, uint64_t field) {
  const std::vector<std::string_view> found = FieldsOf(bytes, field);
  return found.empty() ? std::string_view() : found.back();
}

// Returns the number of elements of a TensorProto, according to its shape.
double ElementsOf(std::string_view tensor) {
  double num_elements = 1;
  for (const std::string_view dim : FieldsOf(FieldOf(tensor, 2), 2)) {
    double size = 0;
    for (ProtoReader reader(dim); reader.Next();) {
      if (reader.field == 1) size = std::max(0.0, static_cast<double>(static_cast<int64_t>(reader.number)));
    }
    num_elements *= size;
  }
  return num_elements;
}

// Parses a NodeDef; for field numbers, see node_def.proto and attr_value.proto.
Node NodeOf(std::string_view bytes) {
  Node node;
  node.op = FieldOf(bytes, 2);
  node.calls = {node.op};
  for (const std::string_view input : FieldsOf(bytes, 3)) node.inputs.emplace_back(input);
  for (const std::string_view attribute : FieldsOf(bytes, 5)) {
    const std::string_view value = EntryOf(attribute).second;
    for (const std::string_view tensor : FieldsOf(value, 8)) node.num_elements += ElementsOf(tensor);
    for (const std::string_view function : FieldsOf(value, 10)) node.calls.emplace_back(FieldOf(function, 1));
    for (const std::string_view list : FieldsOf(value, 1)) {
      for (const std::string_view function : FieldsOf(list, 9)) node.calls.emplace_back(FieldOf(function, 1));
    }
  }
  return node;
}

// Parses a MetaGraphDef; for field numbers, see meta_graph.proto, saver.proto, graph.proto and function.proto.
Graph GraphOf(std::string_view meta_graph) {
  Graph graph;
  for (const std::string_view definition : FieldsOf(meta_graph, 2)) {
    for (const std::string_view node : FieldsOf(definition, 1)) {
      graph.nodes.push_back(NodeOf(node));
      if (!graph.places.emplace(FieldOf(node, 1), graph.places.size()).second)
        throw ArtifactError("two nodes have the same name");
    }
    for (const std::string_view library : FieldsOf(definition, 2)) {
      for (const std::string_view function : FieldsOf(library, 1)) {
        const auto [added, is_new] = graph.functions.emplace(FieldOf(FieldOf(function, 1), 1), std::vector<Node>());
        if (!is_new) throw ArtifactError("two functions have the same name");
        for (const std::string_view node : FieldsOf(function, 3)) added->second.push_back(NodeOf(node));
      }
    }
  }
  for (const std::string_view saver : FieldsOf(meta_graph, 3)) {
    graph.restore.emplace_back(FieldOf(saver, 1));
    graph.restore.emplace_back(FieldOf(saver, 3));
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

// Returns the number of nodes of a function, including called functions, and the call depth.
std::pair<double, int> SizeOf(const Graph& graph, const std::vector<Node>& nodes, int depth,
                              std::map<std::string, std::pair<double, int>>& known) {
  if (depth > kMaxDepth) throw ArtifactError("functions call each other too deeply");
  std::pair<double, int> size{nodes.size(), 1};
  for (const Node& node : nodes) {
    for (const std::string& name : node.calls) {
      const auto function = graph.functions.find(name);
      if (function == graph.functions.end()) continue;
      if (known.count(name) == 0) known[name] = SizeOf(graph, function->second, depth + 1, known);
      size.first += known[name].first;
      size.second = std::max(size.second, known[name].second + 1);
    }
  }
  if (size.first > kMaxNodes || size.second > kMaxDepth) throw ArtifactError("functions call each other too often");
  return size;
}

// Returns the operations that the roots depend on, including those in called functions.
std::set<std::string> RunBy(const Graph& graph, const std::vector<std::string>& roots) {
  std::set<std::string> found, entered, reached;
  std::vector<std::pair<const Node*, bool>> waiting;  // and whether the node is outside all functions
  const auto reach = [&](const std::string& tensor) {
    const size_t begin = tensor.compare(0, 1, "^") == 0;
    const std::string name = tensor.substr(begin, tensor.find(':') - begin);
    const auto place = graph.places.find(name);
    if (place != graph.places.end() && reached.insert(name).second) {
      waiting.emplace_back(&graph.nodes[place->second], true);
    }
  };
  for (const std::string& root : roots) reach(root);
  while (!waiting.empty()) {
    const auto [node, is_outermost] = waiting.back();
    waiting.pop_back();
    if (is_outermost) {
      for (const std::string& input : node->inputs) reach(input);
    }
    for (const std::string& name : node->calls) {
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

// Returns whether an operation only computes, or holds variables and tables.
bool IsTaken(const std::string& name, const Operations& known) {
  const auto found = known.find(name);
  if (found == known.end() || IsAmong(name, kOutside)) return false;
  const auto begins = [&](const char* kind) { return name.compare(0, std::strlen(kind), kind) == 0; };
  if (IsAmong(name, kKeeping) || std::any_of(std::begin(kKeepingKinds), std::end(kKeepingKinds), begins)) return true;
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return !found->second && !std::any_of(std::begin(kIdle), std::end(kIdle), has);
}

// Returns the operations that do more than compute. Checks the whole graph, because TensorFlow runs any stateless node
// while it infers shapes. Saving and restoring is stateful, and allowed as long as no output depends on it.
std::set<std::string> Refused(const Graph& graph, const Operations& known) {
  std::set<std::string> refused;
  for (const std::string& op : RunBy(graph, graph.run)) {
    if (!IsTaken(op, known)) refused.insert(op);
  }
  for (const std::string& op : RunBy(graph, graph.restore)) {
    if (!IsTaken(op, known) && !IsAmong(op, kRestoring)) refused.insert(op);
  }
  graph.ForEachNode([&](const Node& node) {
    const bool is_of_checkpoint = IsAmong(node.op, kWriting) || IsAmong(node.op, kRestoring);
    if (!is_of_checkpoint && !IsTaken(node.op, known) && graph.functions.count(node.op) == 0) refused.insert(node.op);
  });
  return refused;
}

// Refuses a directory with files that TensorFlow is not known to read.
void CheckFiles(const std::string& directory) {
  static const std::regex kKnown(
      R"(saved_model\.pb|fingerprint\.pb|keras_metadata\.pb|variables/variables\.(index|data-\d{5}-of-\d{5})|assets/[^/]+)");
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().lexically_relative(directory);
    const fs::file_type type = entry.symlink_status().type();
    if (type == fs::file_type::regular && std::regex_match(name, kKnown)) continue;
    if (type == fs::file_type::directory && (name == "variables" || name == "assets")) continue;
    throw ArtifactError("it contains " + name + ", which is a link or does not belong in a SavedModel. Remove it.");
  }
}

}  // namespace

std::map<std::string, Signature> SignaturesOf(std::string_view meta_graph) {  // fields of meta_graph.proto
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

Operations OperationsOf(std::string_view op_list) {  // fields of op_def.proto
  Operations known;
  for (const std::string_view op : FieldsOf(op_list, 1)) {
    bool& is_stateful = known[std::string(FieldOf(op, 1))];
    for (ProtoReader reader(op); reader.Next();) is_stateful |= reader.field == 17 && reader.number != 0;
  }
  return known;
}

void CheckServed(const std::string& directory, const Operations& known) {
  std::set<std::string> refused;
  try {
    CheckFiles(directory);
    const MappedFile file(directory + "/saved_model.pb");
    double num_elements = 0;
    try {
      CheckMessage(file.bytes(), 0);
      for (const std::string_view meta_graph : FieldsOf(file.bytes(), 2)) {
        const std::vector<std::string_view> tags = FieldsOf(FieldOf(meta_graph, 1), 4);
        if (std::find(tags.begin(), tags.end(), kTag) == tags.end()) continue;
        const Graph graph = GraphOf(meta_graph);
        std::map<std::string, std::pair<double, int>> sizes;
        SizeOf(graph, graph.nodes, 0, sizes);
        for (const auto& [name, nodes] : graph.functions) SizeOf(graph, nodes, 0, sizes);
        refused.merge(Refused(graph, known));
        graph.ForEachNode([&](const Node& node) { num_elements += node.num_elements; });
      }
    } catch (const ArtifactError& error) {
      throw ArtifactError(std::string("saved_model.pb differs from what TensorFlow writes (") + error.what() +
                          "). Save the model again.");
    }
    if (!(num_elements <= kMaxElements + static_cast<double>(file.bytes().size()))) {
      throw ArtifactError("its constants declare more elements than the file contains. Save the model again.");
    }
  } catch (const fs::filesystem_error& error) {
    throw ArtifactError(directory + " cannot be read: " + error.code().message());
  } catch (const ArtifactError& error) {
    throw ArtifactError(directory + " cannot be loaded: " + error.what());
  }
  if (refused.empty()) return;
  throw ArtifactError(
      directory + " runs the operations " + Listed(refused) +
      ", which may have side effects. Only operations that compute, look up values or hold variables can be served.");
}

}  // namespace rankline
