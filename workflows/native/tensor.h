// Tensors of a request, as they are on the wire and between the steps of an ensemble.
#ifndef RANKLINE_TENSOR_H_
#define RANKLINE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace rankline {

// Of a single value. kString is a std::string_view in memory, which its owner keeps alive.
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

// Bytes of a single value in memory.
inline size_t SizeOf(Dtype dtype) {
  constexpr size_t kSizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, sizeof(std::string_view)};
  return kSizes[static_cast<size_t>(dtype)];
}

// NumPy's names: "int64", "float32", "object" for strings.
const char* NameOf(Dtype dtype);

// Throws std::invalid_argument for a name that is none of them.
Dtype DtypeOf(std::string_view name);

// Values [rows, width], row after row; width is 1 where a row holds one value.
struct Tensor {
  Dtype dtype = Dtype::kInt64;
  int64_t rows = 0;
  int64_t width = 0;
  const void* data = nullptr;
  int rank = 2;  // 1 where it is [rows]: a model without batches may take values and offsets of lists so

  size_t num_bytes() const { return static_cast<size_t>(rows * width) * SizeOf(dtype); }
};

// What a model takes or makes: the name of a tensor, and the width of its rows.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kInt64;
  int64_t width = 1;  // kAnyWidth where it differs from request to request
  bool optional = false;
};

constexpr int64_t kAnyWidth = -1;

// Where outputs go: memory for values [rows, width] of an output by its position, to be filled before Run returns.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void* Allocate(size_t output, int64_t rows, int64_t width) = 0;
};

// A request that cannot be run, whose sender is told why. All else that is thrown is no fault of the request.
class RequestError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file that is missing, damaged or of another version, or does not fit the config.
class ArtifactError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace rankline

#endif  // RANKLINE_TENSOR_H_
