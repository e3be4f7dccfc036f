#include "tensor.h"

namespace rankline {
namespace {

const char* const kNames[] = {"bool",   "int8",   "int16",   "int32",   "int64",   "uint8", "uint16",
                              "uint32", "uint64", "float16", "float32", "float64", "object"};

}  // namespace

const char* NameOf(Dtype dtype) { return kNames[static_cast<size_t>(dtype)]; }

Dtype DtypeOf(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Dtype>(i);
  }
  throw std::invalid_argument("dtype '" + std::string(name) + "' is not known");
}

}  // namespace rankline
