#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "plan/kernels/kernels.h"

namespace rankline {
namespace {

constexpr std::pair<const char*, Function> kFunctions[] = {
    {"add", Function::kAdd},       {"subtract", Function::kSubtract},   {"multiply", Function::kMultiply},
    {"divide", Function::kDivide}, {"remainder", Function::kRemainder}, {"log", Function::kLog}};

// Computes the remainder with the divisor's sign, as in Python; integer division by zero leaves 0.
template <typename T>
T Remainder(T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    const T rest = std::fmod(left, right);
    if (right == T{0}) return rest;
    if (rest == T{0}) return std::copysign(T{0}, right);
    return (right < T{0}) != (rest < T{0}) ? rest + right : rest;
  } else if constexpr (std::is_signed_v<T>) {
    if (right == T{0} || right == T{-1}) return T{0};
    const auto rest = static_cast<T>(left % right);
    return rest != T{0} && (rest < T{0}) != (right < T{0}) ? static_cast<T>(rest + right) : rest;
  } else {
    return right == T{0} ? T{0} : static_cast<T>(left % right);
  }
}

// Wraps integer overflow, which is defined in C++ only for unsigned integers.
template <typename T, typename F>
T Wrapped(T left, T right, F function) {
  if constexpr (std::is_floating_point_v<T>) {
    return function(left, right);
  } else {
    return static_cast<T>(function(static_cast<uint64_t>(left), static_cast<uint64_t>(right)));
  }
}

template <typename T, typename F>
const T* Each(const T* left, const T* right, int64_t right_step, int64_t size, Scratch& scratch, F function) {
  auto* made = scratch.Take<T>(size);
  if (right_step == 0) {
    const T only = *right;
    for (int64_t i = 0; i < size; ++i) made[i] = function(left[i], only);
  } else {
    for (int64_t i = 0; i < size; ++i) made[i] = function(left[i], right[i]);
  }
  return made;
}

// NumPy's float32 logarithm for CPUs with AVX2: a quotient of polynomials around 1, after separating the exponent. Only
// on older machines does NumPy use the C library's logarithm.
__attribute__((target("fma"))) float LogAsNumPy(float x) {
  if (std::isnan(x) || x < 0) return std::numeric_limits<float>::quiet_NaN();
  if (x == 0) return -std::numeric_limits<float>::infinity();
  if (std::isinf(x)) return x;
  int exponent;
  float mantissa = std::frexp(x, &exponent);  // in [0.5, 1)
  auto power = static_cast<float>(exponent);
  if (mantissa <= 0.70710678118654752440F) {
    mantissa += mantissa;
    power -= 1;
  }
  const float t = mantissa - 1;
  float above = __builtin_fmaf(t, 2.589979117907922693523e-02F, 3.808837741388407920751e-01F);
  above = __builtin_fmaf(t, above, 1.480000633576506585156F);
  above = __builtin_fmaf(t, above, 2.112677543073053063722F);
  above = __builtin_fmaf(t, above, 9.999999999999998702752e-01F);
  above = __builtin_fmaf(t, above, 0.0F);
  float below = __builtin_fmaf(t, 5.875095403124574342950e-03F, 1.546476374983906719538e-01F);
  below = __builtin_fmaf(t, below, 9.864942958519418960339e-01F);
  below = __builtin_fmaf(t, below, 2.453006071784736363091F);
  below = __builtin_fmaf(t, below, 2.612677543073109236779F);
  below = __builtin_fmaf(t, below, 1.0F);
  return __builtin_fmaf(power, 0.693147180559945309417232121458176568F, above / below);
}

}  // namespace

Function FunctionOf(const std::string& name) {
  for (const auto& [known, function] : kFunctions) {
    if (name == known) return function;
  }
  throw ArtifactError("unknown function '" + name + "'");
}

Number::Number(const Json& json)
    : is_float(json.kind() == Json::Kind::kFloat),
      whole(json.kind() == Json::Kind::kBool ? json.boolean()
            : is_float                       ? 0
                                             : json.integer()),
      value(is_float                           ? json.number()
            : json.kind() == Json::Kind::kBool ? static_cast<double>(whole)
                                               : json.number()) {}

Vector Number::Beside(Dtype dtype, Scratch& scratch) const {
  const bool wide = is_float && !IsFloat(dtype);
  const Dtype own = wide ? Dtype::kFloat64 : dtype == Dtype::kBool ? Dtype::kInt64 : dtype;
  const void* values = WithType(own, [&](auto* type) -> const void* {
    using T = ValueOf<decltype(type)>;
    auto* only = scratch.Take<T>(1);
    *only = std::is_floating_point_v<T> ? static_cast<T>(value) : static_cast<T>(whole);
    if (!std::is_floating_point_v<T> && static_cast<int64_t>(*only) != whole) {
      throw std::runtime_error(std::to_string(whole) + " does not fit in " + NameOf(own));
    }
    return only;
  });
  return {own, 1, values, nullptr};
}

Vector Log(const Vector& column, Scratch& scratch) {
  const bool is_small = column.dtype == Dtype::kInt16 || column.dtype == Dtype::kUint16;
  if (!IsFloat(column.dtype) && SizeOf(column.dtype) == 1)
    throw std::runtime_error("a logarithm needs more than half precision");
  const Dtype dtype = is_small || column.dtype == Dtype::kFloat32 ? Dtype::kFloat32 : Dtype::kFloat64;
  const Vector numbers = Converted(column, dtype, scratch);
  static const bool kHasAvx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const void* values = nullptr;
  if (dtype == Dtype::kFloat64) {
    const auto* x = numbers.as<double>();
    values = Each(x, x, 1, numbers.size, scratch, [](double value, double) { return std::log(value); });
  } else {
    const auto* x = numbers.as<float>();
    const auto log = kHasAvx2 ? LogAsNumPy : static_cast<float (*)(float)>(std::log);
    values = Each(x, x, 1, numbers.size, scratch, [log](float value, float) { return log(value); });
  }
  return {dtype, numbers.size, values, nullptr};
}

Vector Apply(Function function, const Vector& left, const Vector& right, Scratch& scratch) {
  if (right.size != left.size && right.size != 1) throw std::runtime_error("a step got columns of different lengths");
  Dtype dtype = Promoted(left.dtype, right.dtype);
  if (function == Function::kDivide && !IsFloat(dtype)) dtype = Dtype::kFloat64;
  if (dtype == Dtype::kBool) throw std::runtime_error("arithmetic on booleans is not supported");
  const Vector a = Converted(left, dtype, scratch), b = Converted(right, dtype, scratch);
  const void* values = WithType(dtype, [&](auto* type) -> const void* {
    using T = ValueOf<decltype(type)>;
    const auto each = [&](auto of_two) {
      return Each(a.as<T>(), b.as<T>(), right.size == 1 ? 0 : 1, a.size, scratch, of_two);
    };
    switch (function) {
      case Function::kAdd:
        return each([](T x, T y) { return Wrapped(x, y, [](auto p, auto q) { return p + q; }); });
      case Function::kSubtract:
        return each([](T x, T y) { return Wrapped(x, y, [](auto p, auto q) { return p - q; }); });
      case Function::kMultiply:
        return each([](T x, T y) { return Wrapped(x, y, [](auto p, auto q) { return p * q; }); });
      case Function::kRemainder:
        return each([](T x, T y) { return Remainder(x, y); });
      case Function::kDivide:
        if constexpr (std::is_floating_point_v<T>) return each([](T x, T y) { return x / y; });
        [[fallthrough]];
      default:
        throw std::runtime_error("a function did not get one column");
    }
  });
  return {dtype, a.size, values, nullptr};
}

}  // namespace rankline
