#include "plan/arrays.h"

namespace rankline {
namespace {

void CheckOffsets(const int64_t* offsets, int64_t count, int64_t end) {
  bool wrong = offsets[0] != 0 || offsets[count] > end;
  for (int64_t i = 0; i < count; ++i) wrong |= offsets[i] > offsets[i + 1];
  if (wrong) throw ArtifactError("offsets decrease or exceed the array");
}

}  // namespace

int64_t Array::size() const {
  int64_t size = 1;
  for (const int64_t length : shape) size *= length;
  return size;
}

void Array::Check(Dtype expected) const {
  if (dtype != expected) {
    throw ArtifactError(std::string("an array is ") + NameOf(dtype) + ", expected " + NameOf(expected));
  }
}

const ArrowArray& Arrays::Open(const Json& name) {
  if (const auto known = opened_.find(name.string()); known != opened_.end()) return known->second;
  if (name.string().empty() || name.string().find('/') != std::string::npos || name.string()[0] == '.') {
    throw ArtifactError("'" + name.string() + "' is not the name of a file in the plan's directory");
  }
  auto file = std::make_unique<MappedFile>(directory_ + "/" + name.string());
  try {
    const ArrowArray& array = opened_[name.string()] = ReadArrow(file->bytes());
    files_.push_back(std::move(file));
    return array;
  } catch (const ArtifactError& error) {
    throw ArtifactError(name.string() + ": " + error.what());
  }
}

Array Arrays::Numbers(const Json& value) {
  const ArrowArray& stored = Open(value["array_file"]);
  Array array;
  array.dtype = DtypeOf(value["dtype"].string());
  if (array.dtype == Dtype::kString || array.dtype == Dtype::kFloat16) throw ArtifactError("an array is not numeric");
  int64_t size = 1;
  for (const Json& length : value["shape"].array()) {
    array.shape.push_back(length.integer());
    if (length.integer() < 0 || __builtin_mul_overflow(size, length.integer(), &size)) {
      throw ArtifactError("an array has an invalid shape");
    }
  }
  const std::string_view bytes = stored.buffers[0];
  const auto item = static_cast<int64_t>(SizeOf(array.dtype));
  if (size != stored.length || size > static_cast<int64_t>(bytes.size()) / item) {
    throw ArtifactError(value["array_file"].string() + " does not have the size that plan.json says");
  }
  if (reinterpret_cast<uintptr_t>(bytes.data()) % SizeOf(array.dtype) != 0)
    throw ArtifactError("an array is not aligned");
  array.data = bytes.data();
  return array;
}

Strings Arrays::Text(const Json& value) {
  const ArrowArray& stored = Open(value["strings_file"]);
  if (stored.buffers.size() != 2) throw ArtifactError(value["strings_file"].string() + " does not contain strings");
  const std::string_view offsets = stored.buffers[0];
  if (reinterpret_cast<uintptr_t>(offsets.data()) % sizeof(int64_t) != 0)
    throw ArtifactError("an array is not aligned");
  Strings strings{reinterpret_cast<const int64_t*>(offsets.data()), stored.buffers[1].data(), stored.length};
  if (strings.size == 0 && offsets.empty()) return strings;
  if (strings.size >= static_cast<int64_t>(offsets.size() / sizeof(int64_t)))
    throw ArtifactError("an array has too few offsets");
  CheckOffsets(strings.offsets, strings.size, static_cast<int64_t>(stored.buffers[1].size()));
  return strings;
}

Vector Arrays::Values(const Json& value) {
  if (!value.Get("strings_file").is_null()) {
    const Strings strings = Text(value);
    auto& views = views_.emplace_back(static_cast<size_t>(strings.size));
    for (int64_t i = 0; i < strings.size; ++i) views[static_cast<size_t>(i)] = strings[i];
    return {Dtype::kString, strings.size, views.data(), nullptr};
  }
  const Array array = Numbers(value);
  return {array.dtype, array.size(), array.data, nullptr};
}

const uint8_t* Arrays::Mask(const Json& value, int64_t size) {
  if (value.is_null()) return nullptr;
  const Array mask = Numbers(value);
  if (mask.size() != size) throw ArtifactError("a mask differs in size from its column");
  return mask.as<uint8_t>(Dtype::kBool);
}

Column Arrays::Table(const Json& value) {
  if (value["kind"].string() == "Vector") {
    Vector vector = Values(value["values"]);
    vector.valid = Mask(value["valid"], vector.size);
    return Single(vector);
  }
  if (value["kind"].string() != "Lists") throw ArtifactError("unknown kind of table " + value["kind"].string());
  Column lists = Table(value["elements"]);
  if (lists.is_list) throw ArtifactError("a table contains lists of lists");
  const Array offsets = Numbers(value["offsets"]);
  if (offsets.size() < 1) throw ArtifactError("a table of lists has no offsets");
  lists.is_list = true;
  lists.rows = offsets.size() - 1;
  lists.offsets = offsets.as<int64_t>(Dtype::kInt64);
  CheckOffsets(lists.offsets, lists.rows, lists.elements.size);
  lists.valid = Mask(value["valid"], lists.rows);
  if (!value["width"].is_null()) lists.width = value["width"].integer();
  return lists;
}

}  // namespace rankline
