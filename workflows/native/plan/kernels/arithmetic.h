// NumPy's arithmetic, on NumPy's types: the same bits.
#ifndef RANKLINE_PLAN_ARITHMETIC_H_
#define RANKLINE_PLAN_ARITHMETIC_H_

#include <string>
#include <variant>

#include "json.h"
#include "plan/column.h"

namespace rankline {

enum class Function { kAdd, kSubtract, kMultiply, kDivide, kRemainder, kLog };

// Throws ArtifactError for another name.
Function FunctionOf(const std::string& name);

// A Python number, which never widens a column's dtype.
struct Number {
  bool is_float = false;
  int64_t whole = 0;
  double value = 0;  // of whole ones, too

  explicit Number(const Json& json);

  // As a column of one value beside one of this dtype.
  Vector Beside(Dtype dtype, Scratch& scratch) const;
};

// The logarithm of each number.
Vector Log(const Vector& column, Scratch& scratch);

// Any other function of two columns, the right one of which may hold a single value for all rows.
Vector Apply(Function function, const Vector& left, const Vector& right, Scratch& scratch);

}  // namespace rankline

#endif  // RANKLINE_PLAN_ARITHMETIC_H_
