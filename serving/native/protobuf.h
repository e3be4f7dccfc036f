// Reads protobuf's wire format more strictly than protobuf: groups and overlong numbers are errors.
#ifndef RANKLINE_PROTOBUF_H_
#define RANKLINE_PROTOBUF_H_

#include <cstdint>
#include <string_view>

#include "tensor.h"

namespace rankline {

class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : bytes_(bytes) {}

  // Reads the number and the bytes or value of the next field; returns false at the end. Throws ArtifactError.
  bool Next() {
    if (bytes_.empty()) return false;
    const uint64_t tag = TakeVarint();
    field = tag >> 3;
    wire = tag & 7;
    text = {};
    number = 0;
    switch (wire) {
      case kVarint:
        number = TakeVarint();
        break;
      case kFixed64:
        text = Take(8);
        break;
      case kBytes:
        text = Take(TakeVarint());
        break;
      case kFixed32:
        text = Take(4);
        break;
      default:
        throw ArtifactError("it has a group or another obsolete field type");
    }
    return true;
  }

  enum Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  uint64_t field = 0, wire = 0, number = 0;
  std::string_view text;

 private:
  uint64_t TakeVarint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(Take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80 && (byte > 0 || shift == 0)) return value;
    }
    throw ArtifactError("it has a number that is too long");
  }

  std::string_view Take(uint64_t size) {
    if (size > bytes_.size()) throw ArtifactError("it is truncated");
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
};

}  // namespace rankline

#endif  // RANKLINE_PROTOBUF_H_
