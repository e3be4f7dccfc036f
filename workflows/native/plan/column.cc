#include "plan/column.h"

#include <cstring>
#include <limits>

namespace rankline {
namespace {

[[noreturn]] void OutOfTable(int64_t row, int64_t size) {
  throw std::out_of_range("row " + std::to_string(row) + " is not in a table of " + std::to_string(size) + " rows");
}

bool IsUnsigned(Dtype dtype) { return dtype >= Dtype::kUint8 && dtype <= Dtype::kUint64; }

}  // namespace

const uint8_t* Missing(const Vector& vector, Scratch& scratch) {
  auto* missing = scratch.Take<uint8_t>(vector.size);
  if (vector.valid != nullptr) {
    for (int64_t i = 0; i < vector.size; ++i) missing[i] = !vector.valid[i];
  } else if (IsFloat(vector.dtype)) {
    WithType(vector.dtype, [&](auto* type) {
      const auto* values = vector.as<ValueOf<decltype(type)>>();
      for (int64_t i = 0; i < vector.size; ++i) missing[i] = IsNan(values[i]);
    });
  } else {
    std::memset(missing, 0, static_cast<size_t>(vector.size));
  }
  return missing;
}

const uint8_t* MaskOf(const uint8_t* valid, int64_t size) {
  return valid == nullptr || std::memchr(valid, 0, static_cast<size_t>(size)) == nullptr ? nullptr : valid;
}

Vector TakeRows(const Vector& vector, const int64_t* rows, int64_t count, Scratch& scratch) {
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= vector.size) OutOfTable(rows[i], vector.size);
  }
  Vector taken{vector.dtype, count, nullptr, nullptr};
  WithAnyType(vector.dtype, [&](auto* type) {
    using T = ValueOf<decltype(type)>;
    auto* values = scratch.Take<T>(count);
    for (int64_t i = 0; i < count; ++i) values[i] = vector.as<T>()[rows[i]];
    taken.values = values;
  });
  if (vector.valid != nullptr) {
    auto* valid = scratch.Take<uint8_t>(count);
    for (int64_t i = 0; i < count; ++i) valid[i] = vector.valid[rows[i]];
    taken.valid = MaskOf(valid, count);
  }
  return taken;
}

Column TakeRows(const Column& column, const int64_t* rows, int64_t count, Scratch& scratch) {
  if (!column.is_list) return Single(TakeRows(column.elements, rows, count, scratch));
  Column taken = column;
  taken.rows = count;
  auto* offsets = scratch.Take<int64_t>(count + 1);
  auto* valid = column.valid == nullptr ? nullptr : scratch.Take<uint8_t>(count);
  offsets[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= column.rows) OutOfTable(rows[i], column.rows);
    offsets[i + 1] = offsets[i] + column.offsets[rows[i] + 1] - column.offsets[rows[i]];
    if (valid != nullptr) valid[i] = column.valid[rows[i]];
  }
  auto* elements = scratch.Take<int64_t>(offsets[count]);
  for (int64_t i = 0, to = 0; i < count; ++i) {
    for (int64_t from = column.offsets[rows[i]]; to < offsets[i + 1]; ++to, ++from) elements[to] = from;
  }
  taken.elements = TakeRows(column.elements, elements, offsets[count], scratch);
  taken.offsets = offsets;
  taken.valid = MaskOf(valid, count);
  return taken;
}

Vector Converted(const Vector& vector, Dtype dtype, Scratch& scratch) {
  if (vector.dtype == dtype) return vector;
  Vector converted{dtype, vector.size, nullptr, vector.valid};
  WithType(vector.dtype, [&](auto* from_type) {
    using From = ValueOf<decltype(from_type)>;
    const auto* from = vector.as<From>();
    WithType(dtype, [&](auto* to_type) {
      using To = ValueOf<decltype(to_type)>;
      auto* to = scratch.Take<To>(vector.size);
      if (dtype == Dtype::kBool) {
        for (int64_t i = 0; i < vector.size; ++i) to[i] = from[i] != From{0};
      } else {
        for (int64_t i = 0; i < vector.size; ++i) to[i] = static_cast<To>(from[i]);
      }
      converted.values = to;
    });
  });
  return converted;
}

Vector NumbersOf(const Vector& vector, Scratch& scratch) {
  if (vector.valid == nullptr) return vector;
  Vector numbers = Converted(vector, Dtype::kFloat64, scratch);
  auto* values = scratch.Take<double>(vector.size);
  for (int64_t i = 0; i < vector.size; ++i) {
    values[i] = vector.valid[i] ? numbers.as<double>()[i] : std::numeric_limits<double>::quiet_NaN();
  }
  return {Dtype::kFloat64, vector.size, values, nullptr};
}

Dtype Promoted(Dtype left, Dtype right) {
  if (left == right || right == Dtype::kBool) return left;
  if (left == Dtype::kBool) return right;
  if (IsFloat(left) || IsFloat(right)) {
    const Dtype other = IsFloat(left) ? right : left;
    const bool both = IsFloat(left) && IsFloat(right);
    return !both && SizeOf(other) <= 2 && (IsFloat(left) ? left : right) == Dtype::kFloat32 ? Dtype::kFloat32
                                                                                            : Dtype::kFloat64;
  }
  if (IsUnsigned(left) == IsUnsigned(right)) return SizeOf(left) >= SizeOf(right) ? left : right;
  const Dtype with_sign = IsUnsigned(left) ? right : left, without = IsUnsigned(left) ? left : right;
  if (SizeOf(with_sign) > SizeOf(without)) return with_sign;
  const size_t size = SizeOf(without);
  return size == 1 ? Dtype::kInt16 : size == 2 ? Dtype::kInt32 : size == 4 ? Dtype::kInt64 : Dtype::kFloat64;
}

}  // namespace rankline
