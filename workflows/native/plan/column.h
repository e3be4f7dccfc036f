// Columns of a running plan: values or lists of values, with masks for missing values.
#ifndef RANKLINE_PLAN_COLUMN_H_
#define RANKLINE_PLAN_COLUMN_H_

#include <cmath>
#include <string_view>
#include <type_traits>

#include "plan/scratch.h"
#include "tensor.h"

namespace rankline {

// One value per row. Floats have no mask: NaN means missing, as in pandas.
struct Vector {
  Dtype dtype = Dtype::kInt64;
  int64_t size = 0;
  const void* values = nullptr;    // undefined where missing; std::string_view for strings
  const uint8_t* valid = nullptr;  // 0 where a value is missing; null if none is

  template <typename T>
  const T* as() const {
    return static_cast<const T*>(values);
  }
};

// A vector, or one list per row: the `elements` of all lists, and the offsets of each list.
struct Column {
  Vector elements;
  bool is_list = false;
  const int64_t* offsets = nullptr;  // [rows + 1]
  const uint8_t* valid = nullptr;    // of lists; missing lists have no elements
  int64_t rows = 0;
  int64_t width = kAnyWidth;  // maximum length of a list, if known
};

inline Column Single(const Vector& vector) {
  Column column;
  column.elements = vector;
  column.rows = vector.size;
  return column;
}

inline bool IsFloat(Dtype dtype) { return dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64; }

// Calls a function with a null pointer of the value type (uint8_t for booleans). Refuses strings and float16.
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
      throw std::runtime_error(std::string("a step got ") + NameOf(dtype) + ", expected numbers");
  }
}

// Like WithType, for values that are only moved, including strings.
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

// Returns 1 for each missing row, else 0.
const uint8_t* Missing(const Vector& vector, Scratch& scratch);

// Returns the mask, or null if nothing is missing.
const uint8_t* MaskOf(const uint8_t* valid, int64_t size);

// Returns the vector's values at `rows`; all must be in [0, size).
Vector TakeRows(const Vector& vector, const int64_t* rows, int64_t count, Scratch& scratch);
Column TakeRows(const Column& column, const int64_t* rows, int64_t count, Scratch& scratch);

// Converts numbers like NumPy's astype; missing values stay missing.
Vector Converted(const Vector& vector, Dtype dtype, Scratch& scratch);

// Returns values for arithmetic; as in pandas, integers become float64 if any is missing.
Vector NumbersOf(const Vector& vector, Scratch& scratch);

// Returns NumPy's promotion of two dtypes other than strings.
Dtype Promoted(Dtype left, Dtype right);

}  // namespace rankline

#endif  // RANKLINE_PLAN_COLUMN_H_
