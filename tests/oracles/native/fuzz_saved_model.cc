// Checks SavedModels as the native backend does, and prints "taken" or why not for each. Then damages each, by field or
// byte, and prints what became of those. Built with sanitizers, it ends at the first read or write past an end.
//
//     fuzz_saved_model SEED DAMAGES OPERATIONS DIRECTORY…     OPERATIONS is a file, an OpList of TensorFlow's
#include <fstream>
#include <iostream>
#include <map>

#include "damage.h"
#include "saved_model/check.h"
#include "tensor.h"

namespace {

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

bool TakeVarint(const std::string& bytes, size_t& at, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 63 && at < bytes.size(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// Parts of a message by field; none where it cannot be one.
std::vector<std::string> FieldsOf(const std::string& bytes) {
  std::vector<std::string> fields;
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    uint64_t tag = 0, value = 0;
    if (!TakeVarint(bytes, at, tag)) return {};
    if ((tag & 7) == 0 && !TakeVarint(bytes, at, value)) return {};
    if ((tag & 7) == 2 && (!TakeVarint(bytes, at, value) || value > bytes.size() - at)) return {};
    at += (tag & 7) == 1 ? 8 : (tag & 7) == 5 ? 4 : (tag & 7) == 2 ? value : 0;
    if (at > bytes.size() || (tag & 7) == 3 || (tag & 7) == 4) return {};
    fields.push_back(bytes.substr(begin, at - begin));
  }
  return fields;
}

// Another message of the same lengths outside: a field of some depth is damaged, gone, or there twice.
std::string Damaged(const std::string& message, int depth = 0) {
  std::vector<std::string> fields = FieldsOf(message);
  if (fields.empty()) {
    std::string bytes = message;
    DamageBytes(bytes);
    return bytes;
  }
  const auto chosen = static_cast<size_t>(Below(static_cast<int64_t>(fields.size())));
  std::string& field = fields[chosen];
  size_t at = 0;
  uint64_t tag = 0, size = 0;
  TakeVarint(field, at, tag);
  if ((tag & 7) == 2 && Below(depth == 0 ? 20 : 4) != 0) {
    TakeVarint(field, at, size);
    const std::string inner = Damaged(field.substr(at), depth + 1);
    field = Varint(tag) + Varint(inner.size()) + inner;
  } else {
    const std::string other = OneOf(fields);
    switch (Below(5)) {
      case 0:
        field += other;
        break;
      case 1:
        field.clear();
        break;
      case 2:
        field = Varint(tag ^ static_cast<uint64_t>(1 + Below(7))) + field.substr(at);
        break;
      case 3:
        field = Varint(tag + 8 * static_cast<uint64_t>(Below(9))) + field.substr(at);
        break;
      default:
        DamageBytes(field);
    }
  }
  std::string whole;
  for (const std::string& part : fields) whole += part;
  return whole;
}

std::string Check(const std::string& directory, const rankline::Operations& known) {
  try {
    rankline::CheckServed(directory, known);
    return "taken";
  } catch (const rankline::ArtifactError& error) {
    return error.what();
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5) return 2;
  random_bits.seed(std::stoull(arguments[1]));
  const rankline::Operations known = rankline::OperationsOf(Read(arguments[3]));
  std::map<std::string, int64_t> became;
  for (int i = 4; i < count; ++i) {
    const std::string directory = arguments[i], path = directory + "/saved_model.pb";
    std::cout << Check(directory, known) << "\n";
    const std::string honest = Read(path);
    for (int64_t number = std::stoll(arguments[2]); number > 0; --number) {
      std::ofstream(path, std::ios::binary) << Damaged(Below(4) == 0 ? Damaged(honest) : honest);
      ++became[Check(directory, known) == "taken" ? "taken" : "refused"];
    }
    if (!became.empty()) std::ofstream(path, std::ios::binary) << honest;
  }
  for (const auto& [what, times] : became) std::cout << what << " " << times << "\n";
}
