// The arrays of a plan, by their names in plan.json.
#ifndef RANKLINE_PLAN_ARRAYS_H_
#define RANKLINE_PLAN_ARRAYS_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "json.h"
#include "mapped_file.h"
#include "plan/column.h"

namespace rankline {

// The only column of a memory-mapped Arrow IPC file with one record batch. Its Arrow type is ignored: the plan states
// it.
struct ArrowArray {
  int64_t length = 0;
  std::vector<std::string_view> buffers;  // without the validity buffer, as there are no nulls
};

// Throws ArtifactError if the file is truncated, inconsistent or compressed, or contains nulls.
ArrowArray ReadArrow(std::string_view file);

// Numbers of any shape.
struct Array {
  Dtype dtype = Dtype::kInt64;
  std::vector<int64_t> shape;
  const void* data = nullptr;

  int64_t size() const;
  // Throws ArtifactError if the values have another type.
  template <typename T>
  const T* as(Dtype expected) const {
    Check(expected);
    return static_cast<const T*>(data);
  }

 private:
  void Check(Dtype expected) const;
};

// Concatenated strings with checked offsets.
struct Strings {
  const int64_t* offsets = nullptr;
  const char* data = nullptr;
  int64_t size = 0;

  std::string_view operator[](int64_t i) const {
    return {data + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i])};
  }
};

// Maps the files of a plan for the lifetime of this object. All methods throw ArtifactError.
class Arrays {
 public:
  explicit Arrays(std::string directory) : directory_(std::move(directory)) {}

  Array Numbers(const Json& value);
  Strings Text(const Json& value);
  // Returns a table: `Vector` or `Lists`.
  Column Table(const Json& value);
  // Returns a mask, or null.
  const uint8_t* Mask(const Json& value, int64_t size);
  // Returns the values of a `Vector`, numbers or strings.
  Vector Values(const Json& value);

 private:
  const ArrowArray& Open(const Json& name);

  std::string directory_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::map<std::string, ArrowArray> opened_;
  std::deque<std::vector<std::string_view>> views_;
};

}  // namespace rankline

#endif  // RANKLINE_PLAN_ARRAYS_H_
