// Kernels of the steps: arithmetic on NumPy's types with bitwise the same results, parts of times as in
// `workflows/nvt/dates.py`, and hashes as in `workflows/nvt/keys.py`, which gives the sources.
#ifndef RANKLINE_PLAN_KERNELS_H_
#define RANKLINE_PLAN_KERNELS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "json.h"
#include "plan/column.h"

namespace rankline {

enum class Function { kAdd, kSubtract, kMultiply, kDivide, kRemainder, kLog };

// Throws ArtifactError for an unknown name.
Function FunctionOf(const std::string& name);

// A Python number, which never widens a column's dtype.
struct Number {
  bool is_float = false;
  int64_t whole = 0;
  double value = 0;  // also set for integers

  explicit Number(const Json& json);

  // Returns a single value as the other operand for a column of this dtype.
  Vector Beside(Dtype dtype, Scratch& scratch) const;
};

// Returns the logarithm of each number.
Vector Log(const Vector& column, Scratch& scratch);

// Applies any other function to two columns; the right column may hold a single value for all rows.
Vector Apply(Function function, const Vector& left, const Vector& right, Scratch& scratch);

// Function from microseconds since 1970 to a part of that time.
using DatePart = int64_t (*)(int64_t micros);

// Throws ArtifactError for an unknown part.
DatePart DatePartOf(const std::string& name);

inline uint64_t HashId(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
  return word ^ (word >> 31);
}

uint64_t HashString(std::string_view string, uint64_t seed);

inline uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Returns a key as a 64-bit word; 0.0 and -0.0 are the same key.
template <typename T>
int64_t WordOf(T key) {
  if constexpr (std::is_floating_point_v<T>) return static_cast<int64_t>(BitsOf(static_cast<double>(key) + 0.0));
  return static_cast<int64_t>(key);
}

// An integral value has the same hash as integer and as float.
template <typename T>
uint64_t HashValue(T value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return HashString(value, 0);
  } else if constexpr (std::is_floating_point_v<T>) {
    const auto wide = static_cast<double>(value);
    if (wide == std::trunc(wide) && std::fabs(wide) < 0x1p63)
      return HashId(static_cast<uint64_t>(static_cast<int64_t>(wide)));
    return HashId(BitsOf(wide));
  } else {
    return HashId(static_cast<uint64_t>(static_cast<int64_t>(value)));
  }
}

}  // namespace rankline

#endif  // RANKLINE_PLAN_KERNELS_H_
