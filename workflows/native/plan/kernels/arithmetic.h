// Arithmetic on NumPy's types with bitwise the same results as NumPy.
#ifndef RANKLINE_PLAN_ARITHMETIC_H_
#define RANKLINE_PLAN_ARITHMETIC_H_

#include <string>
#include <variant>

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

}  // namespace rankline

#endif  // RANKLINE_PLAN_ARITHMETIC_H_
