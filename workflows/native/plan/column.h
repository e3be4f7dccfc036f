// Columns while a plan runs: a vector of values, or lists of them, each with its missing values marked.
#ifndef RANKLINE_PLAN_COLUMN_H_
#define RANKLINE_PLAN_COLUMN_H_

#include <cmath>
#include <string_view>
#include <type_traits>

#include "plan/scratch.h"
#include "tensor.h"

namespace rankline {

// One value per row. Floats have no mask: NaN is missing, as in pandas.
struct Vector {
  Dtype dtype = Dtype::kInt64;
  int64_t size = 0;
  const void* values = nullptr;    // anything where missing; std::string_view for strings
  const uint8_t* valid = nullptr;  // 0 where a value is missing; null where nothing is

  template <typename T>
  const T* as() const {
    return static_cast<const T*>(values);
  }
};

// A vector, or one list per row: `elements` of all lists, and where each begins and ends in them.
struct Column {
  Vector elements;
  bool is_list = false;
  const int64_t* offsets = nullptr;  // [rows + 1]
  const uint8_t* valid = nullptr;    // of lists; missing ones have no elements
  int64_t rows = 0;
  int64_t width = kAnyWidth;  // no list is longer, where that is known
};

inline Column Single(const Vector& vector) {
  Column column;
  column.elements = vector;
  column.rows = vector.size;
  return column;
}

inline bool IsFloat(Dtype dtype) { return dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64; }

// Calls a function with a null pointer to the type of the values: uint8_t for booleans. Strings and halves are refused.
template <typename F>
auto WithType(Dtype dtype, F&& function) {
  switch (dtype) {
    case Dtype::kInt8:
      return function(static_cast<int8_t*>(nullptr));
    case Dtype::kInt16:
      return function(static_cast<int16_t*>(nullptr));
    case Dtype::kInt32:
      return function(static_cast<int32_t*>(nullptr));
    case Dtype::kInt64:
      return function(static_cast<int64_t*>(nullptr));
    case Dtype::kBool:
    case Dtype::kUint8:
      return function(static_cast<uint8_t*>(nullptr));
    case Dtype::kUint16:
      return function(static_cast<uint16_t*>(nullptr));
    case Dtype::kUint32:
      return function(static_cast<uint32_t*>(nullptr));
    case Dtype::kUint64:
      return function(static_cast<uint64_t*>(nullptr));
    case Dtype::kFloat32:
      return function(static_cast<float*>(nullptr));
    case Dtype::kFloat64:
      return function(static_cast<double*>(nullptr));
    default:
      throw std::runtime_error(std::string("numbers were expected, not ") + NameOf(dtype));
  }
}

// The same for values that are only moved, strings among them.
template <typename F>
auto WithAnyType(Dtype dtype, F&& function) {
  if (dtype == Dtype::kString) return function(static_cast<std::string_view*>(nullptr));
  return WithType(dtype, function);
}

template <typename T>
using ValueOf = std::remove_pointer_t<T>;

template <typename T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

// Which rows are missing: 1 or 0 for each.
const uint8_t* Missing(const Vector& vector, Scratch& scratch);

// The mask, or null where nothing is missing.
const uint8_t* MaskOf(const uint8_t* valid, int64_t size);

// The vector at some rows, every one of which is looked at: [0, size).
Vector TakeRows(const Vector& vector, const int64_t* rows, int64_t count, Scratch& scratch);
Column TakeRows(const Column& column, const int64_t* rows, int64_t count, Scratch& scratch);

// Numbers as another dtype, as NumPy's astype does it. What is missing stays so.
Vector Converted(const Vector& vector, Dtype dtype, Scratch& scratch);

// Values to compute with: as pandas does, integers become float64 where one is missing.
Vector NumbersOf(const Vector& vector, Scratch& scratch);

// What NumPy makes of two dtypes, neither of them strings.
Dtype Promoted(Dtype left, Dtype right);

}  // namespace rankline

#endif  // RANKLINE_PLAN_COLUMN_H_
