#include <cstring>
#include <utility>

#include "plan/arrays.h"

namespace rankline {
namespace {

// A FlatBuffers table that checks every offset before following it.
class Table {
 public:
  Table(std::string_view buffer, size_t at) : buffer_(buffer), at_(at) {
    const auto back = Read<int32_t>(at);
    vtable_ = static_cast<size_t>(static_cast<int64_t>(at) - back);  // positions before the buffer wrap around
    vtable_bytes_ = Read<uint16_t>(vtable_);
  }

  static Table Root(std::string_view buffer) { return Table(buffer, Table(buffer).Read<uint32_t>(0)); }

  // Returns a field's value, or a default value if it is missing.
  template <typename T>
  T Scalar(size_t field) const {
    const size_t at = Find(field);
    return at == 0 ? T{} : Read<T>(at);
  }

  bool Has(size_t field) const { return Find(field) != 0; }

  Table Child(size_t field) const { return Table(buffer_, Follow(field)); }

  // Returns the position of the first item of a vector, and the number of items.
  std::pair<size_t, size_t> Vector(size_t field, size_t item_bytes) const {
    const size_t at = Follow(field);
    const size_t count = Read<uint32_t>(at);
    if (count > (buffer_.size() - at - 4) / item_bytes) throw ArtifactError("a vector extends beyond the file");
    return {at + 4, count};
  }

  template <typename T>
  T Read(size_t at) const {
    if (at > buffer_.size() || buffer_.size() - at < sizeof(T))
      throw ArtifactError("an offset points outside the file");
    T value;
    std::memcpy(&value, buffer_.data() + at, sizeof(T));
    return value;
  }

 private:
  explicit Table(std::string_view buffer) : buffer_(buffer) {}

  size_t Find(size_t field) const {
    const size_t entry = 4 + 2 * field;
    if (entry + 2 > vtable_bytes_) return 0;
    const size_t offset = Read<uint16_t>(vtable_ + entry);
    return offset == 0 ? 0 : at_ + offset;
  }

  size_t Follow(size_t field) const {
    const size_t at = Find(field);
    if (at == 0) throw ArtifactError("a field is missing");
    return at + Read<uint32_t>(at);
  }

  std::string_view buffer_;
  size_t at_ = 0;
  size_t vtable_ = 0;
  size_t vtable_bytes_ = 0;
};

constexpr std::string_view kMagic("ARROW1\0\0", 8);
constexpr uint32_t kContinuation = 0xFFFFFFFF;
constexpr uint8_t kRecordBatch = 3;
// Field numbers of Arrow's Message.fbs.
constexpr size_t kHeaderType = 1, kHeader = 2, kBodyLength = 3;
constexpr size_t kNodes = 1, kBuffers = 2, kCompression = 3;

std::string_view Part(std::string_view whole, int64_t offset, int64_t length) {
  const auto size = static_cast<int64_t>(whole.size());
  if (offset < 0 || length < 0 || offset > size || length > size - offset) {
    throw ArtifactError("a part extends beyond the file");
  }
  return whole.substr(static_cast<size_t>(offset), static_cast<size_t>(length));
}

}  // namespace

ArrowArray ReadArrow(std::string_view file) {
  if (file.substr(0, kMagic.size()) != kMagic) throw ArtifactError("it is not an Arrow file");
  std::string_view rest = file.substr(kMagic.size());
  while (true) {
    uint32_t prefix[2];
    if (rest.size() < sizeof(prefix)) throw ArtifactError("it has no record batch");
    std::memcpy(prefix, rest.data(), sizeof(prefix));
    if (prefix[0] != kContinuation || prefix[1] == 0) throw ArtifactError("it has no record batch");
    const std::string_view metadata = Part(rest, sizeof(prefix), prefix[1]);
    const Table message = Table::Root(metadata);
    rest = rest.substr(sizeof(prefix) + prefix[1]);
    const std::string_view body = Part(rest, 0, message.Scalar<int64_t>(kBodyLength));
    if (message.Scalar<uint8_t>(kHeaderType) != kRecordBatch) {
      rest = rest.substr(body.size());
      continue;
    }
    const Table batch = message.Child(kHeader);
    if (batch.Has(kCompression)) throw ArtifactError("it is compressed");
    const auto [node, num_nodes] = batch.Vector(kNodes, 16);
    const auto [buffer, num_buffers] = batch.Vector(kBuffers, 16);
    if (num_nodes != 1 || num_buffers < 2) throw ArtifactError("it does not have exactly one column");
    if (batch.Read<int64_t>(node + 8) != 0) throw ArtifactError("it contains nulls");
    ArrowArray array;
    array.length = batch.Read<int64_t>(node);
    if (array.length < 0) throw ArtifactError("it has a negative length");
    for (size_t i = 1; i < num_buffers; ++i) {
      array.buffers.push_back(
          Part(body, batch.Read<int64_t>(buffer + 16 * i), batch.Read<int64_t>(buffer + 16 * i + 8)));
    }
    return array;
  }
}

}  // namespace rankline
