// Tensors of a request, on the wire and between the steps of an ensemble.
#ifndef RANKLINE_TENSOR_H_
#define RANKLINE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace rankline {

// Type of a single value. kString is a std::string_view of memory that the caller keeps alive.
enum class Dtype : uint8_t {
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kString,
};

// Returns the size of a single value in bytes.
inline size_t SizeOf(Dtype dtype) {
  constexpr size_t kSizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, sizeof(std::string_view)};
  return kSizes[static_cast<size_t>(dtype)];
}

constexpr const char* kDtypeNames[] = {"bool",   "int8",   "int16",   "int32",   "int64",   "uint8", "uint16",
                                       "uint32", "uint64", "float16", "float32", "float64", "object"};

// Returns NumPy's name: "int64", "float32", "object" for strings.
inline const char* NameOf(Dtype dtype) { return kDtypeNames[static_cast<size_t>(dtype)]; }

// Throws std::invalid_argument for an unknown name.
inline Dtype DtypeOf(std::string_view name) {
  for (size_t i = 0; i < std::size(kDtypeNames); ++i) {
    if (name == kDtypeNames[i]) return static_cast<Dtype>(i);
  }
  throw std::invalid_argument("unknown dtype '" + std::string(name) + "'");
}

// Values [rows, width] in row-major order; width is 1 if each row has one value.
struct Tensor {
  Dtype dtype = Dtype::kInt64;
  int64_t rows = 0;
  int64_t width = 0;
  const void* data = nullptr;
  int rank = 2;  // 1 for shape [rows], such as list values and offsets of unbatched models

  size_t num_bytes() const { return static_cast<size_t>(rows * width) * SizeOf(dtype); }
};

// An input or output of a model: its name, and the width of its rows.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kInt64;
  int64_t width = 1;  // kAnyWidth if it differs between requests
  bool optional = false;
};

constexpr int64_t kAnyWidth = -1;

// Provides memory for the values [rows, width] of each output, by position, to be filled before Run returns.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void* Allocate(size_t output, int64_t rows, int64_t width) = 0;
};

// An invalid request; the message is sent to the client. Other exceptions are not the fault of the request.
class RequestError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file is missing, damaged or of another version, or does not fit the config.
class ArtifactError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace rankline

#endif  // RANKLINE_TENSOR_H_
