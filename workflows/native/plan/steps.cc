#include <algorithm>
#include <cstring>
#include <limits>

#include "plan/kernels/kernels.h"
#include "plan/step.h"

namespace rankline {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A constant number or string.
class Constant {
 public:
  explicit Constant(const Json& json) : is_string_(json.is_string()) {
    if (is_string_)
      text_ = json.string();
    else
      number_ = Number(json);
  }

  // Converts to this type, as NumPy converts a Python number.
  template <typename T>
  T As() const {
    if constexpr (std::is_same_v<T, std::string_view>) {
      if (!is_string_) throw std::runtime_error("a step got a number among strings");
      return text_;
    } else {
      if (is_string_) throw std::runtime_error("a step got a string among numbers");
      return number_.is_float ? static_cast<T>(number_.value) : static_cast<T>(number_.whole);
    }
  }

 private:
  bool is_string_;
  std::string text_;
  Number number_{Json::Parse("0")};
};

// Returns a vector of `size` values, each computed from its row number.
template <typename T, typename F>
Vector Made(Dtype dtype, int64_t size, Scratch& scratch, F value) {
  auto* values = scratch.Take<T>(size);
  for (int64_t i = 0; i < size; ++i) values[i] = static_cast<T>(value(i));
  return {dtype, size, values, nullptr};
}

Vector Whole(const Vector& vector, Scratch& scratch) { return Converted(vector, Dtype::kInt64, scratch); }

class Take : public Step {
 public:
  Take(const Json& entry, Arrays& arrays) : table_(arrays.Table(entry["table"])) {}

  Column Run(const Column* const* columns, size_t, Scratch& scratch) const override {
    const Column& rows = *columns[0];
    const Vector whole = Whole(rows.elements, scratch);
    const Column taken = TakeRows(table_, whole.as<int64_t>(), whole.size, scratch);
    if (!rows.is_list) return taken;
    if (taken.is_list) throw std::runtime_error("a step got lists of lists");
    Column made = rows;
    made.elements = taken.elements;
    return made;
  }

 private:
  Column table_;
};

class Cast : public Elementwise {
 public:
  explicit Cast(const Json& entry) : dtype_(DtypeOf(entry["dtype"].string())) {}

  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    const Vector& column = vectors[0];
    if (IsFloat(dtype_)) return Converted(NumbersOf(column, scratch), dtype_, scratch);
    if (!IsFloat(column.dtype)) return Converted(column, dtype_, scratch);
    const uint8_t* missing = Missing(column, scratch);
    auto* valid = scratch.Take<uint8_t>(column.size);
    for (int64_t i = 0; i < column.size; ++i) valid[i] = !missing[i];
    Vector present = column;
    WithType(column.dtype, [&](auto* type) {
      using T = ValueOf<decltype(type)>;
      auto* values = scratch.Take<T>(column.size);
      for (int64_t i = 0; i < column.size; ++i) values[i] = valid[i] ? column.as<T>()[i] : T{0};
      present.values = values;
    });
    Vector made = Converted(present, dtype_, scratch);
    made.valid = MaskOf(valid, column.size);
    return made;
  }

 private:
  Dtype dtype_;
};

class Narrow : public Elementwise {
 public:
  explicit Narrow(const Json& entry) : column_(entry["column"].string()), dtype_(DtypeOf(entry["dtype"].string())) {
    if (IsFloat(dtype_)) throw ArtifactError("a step narrows floats, expected integers");
  }

  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    const Vector& column = vectors[0];
    if (IsFloat(column.dtype)) throw std::runtime_error("a step got floats, expected whole numbers");
    const Vector narrow = Converted(column, dtype_, scratch);
    WithType(column.dtype, [&](auto* type) {
      const auto* before = column.as<ValueOf<decltype(type)>>();
      WithType(dtype_, [&](auto* narrow_type) {
        const auto* after = narrow.as<ValueOf<decltype(narrow_type)>>();
        for (int64_t i = 0; i < column.size; ++i) {
          if (column.valid != nullptr && !column.valid[i]) continue;
          if (static_cast<__int128>(before[i]) != static_cast<__int128>(after[i])) {
            throw RequestError("column '" + column_ + "' contains " + std::to_string(before[i]) +
                               ", which is out of range for " + NameOf(dtype_) + ".");
          }
        }
      });
    });
    return narrow;
  }

 private:
  std::string column_;
  Dtype dtype_;
};

// Parses 1 to 15 hexadecimal digits; returns NaN for any other string.
double NumberOfHex(std::string_view text) {
  if (text.empty() || text.size() > 15) return kNan;
  uint64_t number = 0;
  for (const char sign : text) {
    const int lower = sign | 0x20;
    if (sign >= '0' && sign <= '9')
      number = number << 4 | static_cast<uint64_t>(sign - '0');
    else if (lower >= 'a' && lower <= 'f')
      number = number << 4 | static_cast<uint64_t>(lower - 'a' + 10);
    else
      return kNan;
  }
  return static_cast<double>(number);
}

class HexToInt : public Elementwise {
 public:
  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    const Vector& column = vectors[0];
    if (column.dtype != Dtype::kString) throw std::runtime_error("a step got numbers, expected strings");
    const auto* text = column.as<std::string_view>();
    return Made<double>(Dtype::kFloat64, column.size, scratch, [&](int64_t i) {
      return column.valid != nullptr && !column.valid[i] ? kNan : NumberOfHex(text[i]);
    });
  }
};

class Finite : public Elementwise {
 public:
  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    const Vector& column = vectors[0];
    if (!IsFloat(column.dtype)) throw std::runtime_error("a step got whole numbers, expected floats");
    return WithType(column.dtype, [&](auto* type) {
      using T = ValueOf<decltype(type)>;
      const auto* values = column.as<T>();
      return Made<T>(column.dtype, column.size, scratch, [&](int64_t i) {
        return std::isfinite(static_cast<float>(values[i])) ? static_cast<double>(values[i]) : kNan;
      });
    });
  }
};

class PartOfTime : public Elementwise {
 public:
  explicit PartOfTime(const Json& entry) : part_(DatePartOf(entry["part"].string())) {}

  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    const Vector& column = vectors[0];
    const uint8_t* missing = Missing(column, scratch);
    return WithType(column.dtype, [&](auto* type) {
      const auto* micros = column.as<ValueOf<decltype(type)>>();
      return Made<double>(Dtype::kFloat64, column.size, scratch, [&](int64_t i) {
        return missing[i] ? kNan : static_cast<double>(part_(static_cast<int64_t>(micros[i])));
      });
    });
  }

 private:
  DatePart part_;
};

class Arithmetic : public Elementwise {
 public:
  explicit Arithmetic(const Json& entry) : function_(FunctionOf(entry["function"].string())) {
    has_operand_ = !entry["operand"].is_null();
    if (has_operand_) operand_ = Number(entry["operand"]);
  }

  // Uses the same number, with its own dtype, for all rows.
  Arithmetic(Function function, const Vector& number) : function_(function), has_operand_(false), number_(number) {}

  Vector Compute(const Vector* vectors, size_t count, Scratch& scratch) const override {
    const Vector left = NumbersOf(vectors[0], scratch);
    if (function_ == Function::kLog) return Log(left, scratch);
    if (number_.values != nullptr) return Apply(function_, left, number_, scratch);
    if (!has_operand_ && count != 2) throw std::runtime_error("a function did not get two columns");
    const Vector right = has_operand_ ? operand_.Beside(left.dtype, scratch) : NumbersOf(vectors[1], scratch);
    return Apply(function_, left, right, scratch);
  }

 private:
  Function function_;
  bool has_operand_;
  Number operand_{Json::Parse("0")};
  Vector number_;
};

class Fill : public Elementwise {
 public:
  explicit Fill(const Json& entry) : value_(entry["value"]) {}

  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    const Vector& column = vectors[0];
    if (column.valid == nullptr && !IsFloat(column.dtype)) return column;
    return WithAnyType(column.dtype, [&](auto* type) -> Vector {
      using T = ValueOf<decltype(type)>;
      const auto fill = value_.As<T>();
      const auto* from = column.as<T>();
      auto* values = scratch.Take<T>(column.size);
      for (int64_t i = 0; i < column.size; ++i) {
        values[i] = (column.valid != nullptr ? !column.valid[i] : IsNan(from[i])) ? fill : from[i];
      }
      return {column.dtype, column.size, values, nullptr};
    });
  }

 private:
  Constant value_;
};

class IsMissing : public Elementwise {
 public:
  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    return {Dtype::kBool, vectors[0].size, Missing(vectors[0], scratch), nullptr};
  }
};

class Clip : public Elementwise {
 public:
  explicit Clip(const Json& entry) {
    has_lowest_ = !entry["lowest"].is_null(), has_highest_ = !entry["highest"].is_null();
    if (has_lowest_) lowest_ = Number(entry["lowest"]);
    if (has_highest_) highest_ = Number(entry["highest"]);
  }

  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    Vector made = vectors[0];
    WithType(made.dtype, [&](auto* type) {
      using T = ValueOf<decltype(type)>;
      auto* values = scratch.Take<T>(made.size);
      std::memcpy(values, made.values, static_cast<size_t>(made.size) * sizeof(T));
      if (has_lowest_) Bound(values, made.size, lowest_, [](auto value, auto bound) { return value < bound; });
      if (has_highest_) Bound(values, made.size, highest_, [](auto value, auto bound) { return value > bound; });
      made.values = values;
    });
    return made;
  }

 private:
  template <typename T, typename F>
  static void Bound(T* values, int64_t size, const Number& bound, F beyond) {
    if constexpr (std::is_floating_point_v<T>) {
      const auto own = static_cast<T>(bound.value);
      for (int64_t i = 0; i < size; ++i) values[i] = beyond(values[i], own) ? own : values[i];
    } else {
      const auto own = bound.is_float ? static_cast<T>(bound.value) : static_cast<T>(bound.whole);
      for (int64_t i = 0; i < size; ++i) {
        // Like NumPy, compare as floats if the bound is a float, and exactly if it is an integer.
        const bool is_beyond = bound.is_float
                                   ? beyond(static_cast<double>(values[i]), bound.value)
                                   : beyond(static_cast<__int128>(values[i]), static_cast<__int128>(bound.whole));
        if (is_beyond) values[i] = own;
      }
    }
  }

  bool has_lowest_, has_highest_;
  Number lowest_{Json::Parse("0")}, highest_{Json::Parse("0")};
};

class Digitize : public Elementwise {
 public:
  Digitize(const Json& entry, Arrays& arrays)
      : boundaries_(arrays.Values(entry["boundaries"])), descending_(entry["descending"].boolean()) {}

  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    const Vector numbers = NumbersOf(vectors[0], scratch);
    const Dtype common = Promoted(boundaries_.dtype, numbers.dtype);
    const Vector bounds = Converted(boundaries_, common, scratch), values = Converted(numbers, common, scratch);
    return WithType(common, [&](auto* type) {
      using T = ValueOf<decltype(type)>;
      const T *begin = bounds.as<T>(), *end = begin + bounds.size;
      return Made<int32_t>(Dtype::kInt32, values.size, scratch, [&](int64_t i) {
        const T value = values.as<T>()[i];
        const int64_t bin = IsNan(value) ? bounds.size : std::upper_bound(begin, end, value) - begin;
        return descending_ ? bounds.size - bin : bin;
      });
    });
  }

 private:
  Vector boundaries_;
  bool descending_;
};

class Combine : public Elementwise {
 public:
  explicit Combine(const Json& entry) {
    for (const Json& size : entry["sizes"].array()) sizes_.push_back(size.integer());
  }

  Vector Compute(const Vector* vectors, size_t count, Scratch& scratch) const override {
    if (count != sizes_.size()) throw std::runtime_error("the number of digits differs from the number of columns");
    Vector key = Whole(vectors[0], scratch);
    for (size_t k = 1; k < count; ++k) {
      const Vector digit = Whole(vectors[k], scratch);
      const auto size = static_cast<uint64_t>(sizes_[k]);
      const auto *before = key.as<uint64_t>(), *rows = digit.as<uint64_t>();
      key = Made<uint64_t>(Dtype::kInt64, key.size, scratch, [&](int64_t i) { return before[i] * size + rows[i]; });
    }
    return key;
  }

 private:
  std::vector<int64_t> sizes_;
};

// Returns the hash of each value, or 0 for missing values.
const uint64_t* HashesOf(const Vector& column, Scratch& scratch) {
  const uint8_t* missing = Missing(column, scratch);
  auto* hashes = scratch.Take<uint64_t>(column.size);
  WithAnyType(column.dtype, [&](auto* type) {
    const auto* values = column.as<ValueOf<decltype(type)>>();
    for (int64_t i = 0; i < column.size; ++i) hashes[i] = missing[i] ? 0 : HashValue(values[i]);
  });
  return hashes;
}

class Bucket : public Elementwise {
 public:
  explicit Bucket(uint64_t num_buckets) : num_buckets_(num_buckets) {
    if (num_buckets_ == 0) throw ArtifactError("no buckets");
  }

  Vector Compute(const Vector* vectors, size_t count, Scratch& scratch) const override {
    const uint64_t* combined = HashesOf(vectors[0], scratch);
    for (size_t k = 1; k < count; ++k) {
      const uint64_t* hashes = HashesOf(vectors[k], scratch);
      auto* both = scratch.Take<uint64_t>(vectors[0].size);
      for (int64_t i = 0; i < vectors[0].size; ++i) both[i] = HashId(combined[i]) ^ hashes[i];
      combined = both;
    }
    return Made<int32_t>(Dtype::kInt32, vectors[0].size, scratch,
                         [&](int64_t i) { return combined[i] % num_buckets_; });
  }

 private:
  uint64_t num_buckets_;
};

// A step from lists to other lists.
class OnLists : public Step {
 protected:
  static const Column& Lists(const Column& column) {
    if (!column.is_list) throw std::runtime_error("a step got single values, expected lists");
    return column;
  }

  // Returns lists of new lengths. `source` maps a row and position to an element, or to -1 for the fill value.
  template <typename L, typename S>
  static Column Rebuilt(const Column& lists, const Constant* filling, Scratch& scratch, L length, S source) {
    Column made = lists;
    auto* offsets = scratch.Take<int64_t>(lists.rows + 1);
    offsets[0] = 0;
    for (int64_t i = 0; i < lists.rows; ++i) offsets[i + 1] = offsets[i] + length(i);
    const int64_t count = offsets[lists.rows];
    made.offsets = offsets;
    const Vector& from = lists.elements;
    auto* valid = from.valid == nullptr ? nullptr : scratch.Take<uint8_t>(count);
    made.elements = WithAnyType(from.dtype, [&](auto* type) -> Vector {
      using T = ValueOf<decltype(type)>;
      auto* values = scratch.Take<T>(count);
      const T fill = filling == nullptr ? T{} : filling->As<T>();
      for (int64_t i = 0; i < lists.rows; ++i) {
        for (int64_t to = offsets[i]; to < offsets[i + 1]; ++to) {
          const int64_t at = source(i, to - offsets[i]);
          values[to] = at < 0 ? fill : from.as<T>()[at];
          if (valid != nullptr) valid[to] = at < 0 || from.valid[at];
        }
      }
      return {from.dtype, count, values, MaskOf(valid, count)};
    });
    return made;
  }

  static int64_t LengthOf(const Column& lists, int64_t row) { return lists.offsets[row + 1] - lists.offsets[row]; }
};

class Slice : public OnLists {
 public:
  explicit Slice(const Json& entry)
      : start_(entry["start"].integer()),
        end_(entry["end"].integer()),
        width_(entry["width"].is_null() ? kAnyWidth : entry["width"].integer()) {}

  Column Run(const Column* const* columns, size_t, Scratch& scratch) const override {
    const Column& lists = Lists(*columns[0]);
    const auto at = [&](int64_t position, int64_t length) {
      return std::clamp<int64_t>(position < 0 ? length + position : position, 0, length);
    };
    Column made = Rebuilt(
        lists, nullptr, scratch,
        [&](int64_t row) {
          const int64_t length = LengthOf(lists, row);
          return std::max<int64_t>(at(end_, length) - at(start_, length), 0);
        },
        [&](int64_t row, int64_t place) { return lists.offsets[row] + at(start_, LengthOf(lists, row)) + place; });
    made.width = width_;
    return made;
  }

 private:
  int64_t start_, end_, width_;
};

class Pad : public OnLists {
 public:
  explicit Pad(const Json& entry) : width_(entry["width"].integer()), value_(entry["value"]) {}

  Column Run(const Column* const* columns, size_t, Scratch& scratch) const override {
    const Column& lists = Lists(*columns[0]);
    return Rebuilt(
        lists, &value_, scratch,
        [&](int64_t row) {
          const bool missing = lists.valid != nullptr && !lists.valid[row];
          return missing ? 0 : std::max(LengthOf(lists, row), width_);
        },
        [&](int64_t row, int64_t place) { return place < LengthOf(lists, row) ? lists.offsets[row] + place : -1; });
  }

 private:
  int64_t width_;
  Constant value_;
};

class Limit : public OnLists {
 public:
  explicit Limit(const Json& entry) : column_(entry["column"].string()), width_(entry["width"].integer()) {}

  Column Run(const Column* const* columns, size_t, Scratch&) const override {
    Column made = Lists(*columns[0]);
    int64_t longest = 0;
    for (int64_t row = 0; row < made.rows; ++row) longest = std::max(longest, LengthOf(made, row));
    if (longest > width_) {
      throw RequestError("column '" + column_ + "' has a list of " + std::to_string(longest) +
                         " values, expected at most " + std::to_string(width_) + ".");
    }
    made.width = width_;
    return made;
  }

 private:
  std::string column_;
  int64_t width_;
};

class Element : public OnLists {
 public:
  explicit Element(const Json& entry)
      : column_(entry["column"].string()), place_(entry["place"].integer()), length_(entry["length"].integer()) {
    if (place_ < 0 || place_ >= length_) throw ArtifactError("a position is outside the list");
  }

  Column Run(const Column* const* columns, size_t, Scratch& scratch) const override {
    const Column& lists = Lists(*columns[0]);
    const Vector& from = lists.elements;
    auto* valid = scratch.Take<uint8_t>(lists.rows);
    for (int64_t row = 0; row < lists.rows; ++row) {
      const int64_t length = LengthOf(lists, row);
      if (length != 0 && length != length_) {
        throw RequestError("column '" + column_ + "' has a list of " + std::to_string(length) + " values, expected " +
                           std::to_string(length_) + ".");
      }
      valid[row] = length != 0 && (from.valid == nullptr || from.valid[lists.offsets[row] + place_]);
    }
    return WithType(from.dtype, [&](auto* type) -> Column {
      using T = std::remove_pointer_t<decltype(type)>;
      constexpr bool kIsFloat = std::is_floating_point_v<T>;
      Vector made = Made<T>(from.dtype, lists.rows, scratch, [&](int64_t row) -> T {
        if (valid[row]) return from.as<T>()[lists.offsets[row] + place_];
        return kIsFloat ? static_cast<T>(kNan) : T{};
      });
      if (!kIsFloat) made.valid = MaskOf(valid, lists.rows);
      return Single(made);
    });
  }

 private:
  std::string column_;
  int64_t place_, length_;
};

class SameLengths : public OnLists {
 public:
  Column Run(const Column* const* columns, size_t count, Scratch& scratch) const override {
    if (count != 2 || columns[0]->rows != columns[1]->rows)
      throw std::runtime_error("a step got lists with different numbers of rows");
    const Column &lists = Lists(*columns[0]), &like = Lists(*columns[1]);
    Column made = Rebuilt(
        lists, nullptr, scratch, [&](int64_t row) { return LengthOf(like, row); },
        [&](int64_t row, int64_t place) {
          const int64_t at = lists.offsets[row + 1] - LengthOf(like, row) + place;
          return at < lists.offsets[row] ? -1 : at;
        });
    made.width = like.width;
    return made;
  }
};

class NullToEmpty : public OnLists {
 public:
  Column Run(const Column* const* columns, size_t, Scratch&) const override {
    Column made = Lists(*columns[0]);
    made.valid = nullptr;
    return made;
  }
};

class WithoutEmpty : public OnLists {
 public:
  Column Run(const Column* const* columns, size_t, Scratch& scratch) const override {
    const Column& column = *columns[0];
    const Vector& texts = column.elements;
    if (texts.dtype != Dtype::kString) throw std::runtime_error("a step got numbers, expected strings");
    auto* kept = scratch.Take<uint8_t>(texts.size);
    for (int64_t i = 0; i < texts.size; ++i) {
      kept[i] = (texts.valid == nullptr || texts.valid[i]) && !texts.as<std::string_view>()[i].empty();
    }
    Column made = column;
    if (!column.is_list) {
      made.elements.valid = MaskOf(kept, texts.size);
      return made;
    }
    auto* offsets = scratch.Take<int64_t>(column.rows + 1);
    auto* places = scratch.Take<int64_t>(texts.size);
    int64_t count = 0;
    for (int64_t row = 0; row < column.rows; ++row) {
      offsets[row] = count;
      for (int64_t i = column.offsets[row]; i < column.offsets[row + 1]; ++i) {
        if (kept[i]) places[count++] = i;
      }
    }
    offsets[column.rows] = count;
    made.offsets = offsets;
    made.elements = TakeRows(texts, places, count, scratch);
    return made;
  }
};

// Looks up keys of one column of a stack in a table.
class Lookup : public Elementwise {
 public:
  Lookup(const Json& entry, Arrays& arrays, int64_t member, int64_t members) {
    const Array hashes = arrays.Numbers(entry["hashes"]), starts = arrays.Numbers(entry["starts"]);
    const Array values = arrays.Numbers(entry["values"]), unknown = arrays.Numbers(entry["unknown"]);
    const Array missing = OfMembers(entry["missing"], arrays, members);
    // Returns this column's start and maximum length in an array of all columns.
    const auto part = [&](const char* name, const Array& all) {
      const Array firsts = OfMembers(entry[name], arrays, members);
      const auto* first = firsts.as<int64_t>(Dtype::kInt64) + member;
      const int64_t end = member + 1 < members ? first[1] : all.size();
      if (*first < 0 || *first > end || end > all.size())
        throw ArtifactError("the columns of a lookup decrease or exceed it");
      return std::pair(*first, end - *first);
    };
    const auto [hash, num_hashes] = part("first_hashes", hashes);
    const auto [start, num_starts] = part("first_starts", starts);
    const auto [bucket, most_buckets] = part("first_unknown", unknown);
    hashes_ = CheckedHashes(hashes.as<uint64_t>(Dtype::kUint64) + hash, num_hashes,
                            starts.as<int32_t>(Dtype::kInt32) + start, num_starts);
    num_buckets_ =
        static_cast<int64_t>(OfMembers(entry["num_unknown"], arrays, members).as<uint64_t>(Dtype::kUint64)[member]);
    if (values.size() != hashes.size() || values.dtype != unknown.dtype || values.dtype != missing.dtype ||
        num_buckets_ < 1 || num_buckets_ > most_buckets) {
      throw ArtifactError("a lookup is inconsistent");
    }
    const size_t item = SizeOf(values.dtype);
    const auto from = [&](const Array& array, int64_t at) {
      return static_cast<const char*>(array.data) + static_cast<size_t>(at) * item;
    };
    values_ = {values.dtype, num_hashes, from(values, hash), nullptr};
    unknown_ = {values.dtype, num_buckets_, from(unknown, bucket), nullptr};
    missing_ = {values.dtype, 1, from(missing, member), nullptr};
  }

  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    const Vector& keys = vectors[0];
    const uint8_t* missing = Missing(keys, scratch);
    auto* found = scratch.Take<int64_t>(keys.size);  // position of a known key, or -1 - bucket
    WithType(keys.dtype, [&](auto* type) {
      const auto* key = keys.as<ValueOf<decltype(type)>>();
      for (int64_t i = 0; i < keys.size; ++i) {
        found[i] = hashes_.Find(HashId(static_cast<uint64_t>(WordOf(key[i]))));
        if (found[i] < 0 && !missing[i])
          found[i] -= static_cast<int64_t>(HashValue(key[i]) % static_cast<uint64_t>(num_buckets_));
      }
    });
    return WithType(values_.dtype, [&](auto* type) {
      using T = ValueOf<decltype(type)>;
      const T *values = values_.as<T>(), *unknown = unknown_.as<T>(), if_missing = *missing_.as<T>();
      return Made<T>(values_.dtype, keys.size, scratch, [&](int64_t i) {
        return missing[i] ? if_missing : found[i] < 0 ? unknown[-1 - found[i]] : values[found[i]];
      });
    });
  }

  // Returns an array with one value per column of a stack.
  static Array OfMembers(const Json& value, Arrays& arrays, int64_t members) {
    const Array array = arrays.Numbers(value);
    if (array.size() != members) throw ArtifactError("a stack has different numbers of constants and columns");
    return array;
  }

 private:
  Hashes hashes_;
  Vector values_, unknown_, missing_;
  int64_t num_buckets_ = 0;
};

}  // namespace

std::unique_ptr<const Step> MakeStep(const Json& entry, Arrays& arrays) {
  const std::string& kind = entry["kind"].string();
  if (kind == "Cast") return std::make_unique<Cast>(entry);
  if (kind == "Narrow") return std::make_unique<Narrow>(entry);
  if (kind == "HexToInt") return std::make_unique<HexToInt>();
  if (kind == "Finite") return std::make_unique<Finite>();
  if (kind == "DatePart") return std::make_unique<PartOfTime>(entry);
  if (kind == "Arithmetic") return std::make_unique<Arithmetic>(entry);
  if (kind == "Fill") return std::make_unique<Fill>(entry);
  if (kind == "IsMissing") return std::make_unique<IsMissing>();
  if (kind == "Clip") return std::make_unique<Clip>(entry);
  if (kind == "Digitize") return std::make_unique<Digitize>(entry, arrays);
  if (kind == "Bucket") return std::make_unique<Bucket>(static_cast<uint64_t>(entry["num_buckets"].integer()));
  if (kind == "Take") return std::make_unique<Take>(entry, arrays);
  if (kind == "KeyIndex") return MakeKeyIndex(entry, arrays);
  if (kind == "Combine") return std::make_unique<Combine>(entry);
  if (kind == "Slice") return std::make_unique<Slice>(entry);
  if (kind == "Pad") return std::make_unique<Pad>(entry);
  if (kind == "Limit") return std::make_unique<Limit>(entry);
  if (kind == "Element") return std::make_unique<Element>(entry);
  if (kind == "SameLengths") return std::make_unique<SameLengths>();
  if (kind == "NullToEmpty") return std::make_unique<NullToEmpty>();
  if (kind == "WithoutEmpty") return std::make_unique<WithoutEmpty>();
  if (kind == "Similarity")
    throw ArtifactError("ColumnSimilarity is no longer compiled. Export with --uncompiled ColumnSimilarity");
  throw ArtifactError("unknown kind of step '" + kind + "'");
}

std::unique_ptr<const Step> MakeMemberStep(const Json& entry, Arrays& arrays, int64_t member, int64_t members) {
  const std::string& kind = entry["kind"].string();
  const auto at = static_cast<size_t>(member);
  if (kind == "StackedLookup") return std::make_unique<Lookup>(entry, arrays, member, members);
  if (kind == "StackedBucket") {
    const Array numbers = Lookup::OfMembers(entry["num_buckets"], arrays, members);
    return std::make_unique<Bucket>(numbers.as<uint64_t>(Dtype::kUint64)[at]);
  }
  if (kind == "StackedArithmetic") {
    const Array numbers = Lookup::OfMembers(entry["operands"], arrays, members);
    const auto* own = static_cast<const char*>(numbers.data) + at * SizeOf(numbers.dtype);
    return std::make_unique<Arithmetic>(FunctionOf(entry["function"].string()), Vector{numbers.dtype, 1, own, nullptr});
  }
  return MakeStep(entry, arrays);
}

}  // namespace rankline
