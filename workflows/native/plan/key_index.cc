#include <algorithm>

#include "plan/kernels/kernels.h"
#include "plan/step.h"

namespace rankline {
namespace {

class KeyIndex : public Elementwise {
 public:
  KeyIndex(const Json& entry, Arrays& arrays)
      : num_unknown_(entry["num_unknown"].integer()),
        missing_row_(entry["missing_row"].integer()),
        origin_(entry["origin"].integer()),
        seed_(static_cast<uint64_t>(entry["seed"].integer())) {
    if (num_unknown_ < 1) throw ArtifactError("an index has no row for unknown keys");
    const Array rows = arrays.Numbers(entry["rows"]);
    num_rows_ = rows.size();
    is_hashed_ = !entry["hashes"].is_null();
    if (is_hashed_) {
      small_rows_ = rows.as<int32_t>(Dtype::kInt32);
      const Array hashes = arrays.Numbers(entry["hashes"]), starts = arrays.Numbers(entry["starts"]);
      if (num_rows_ != hashes.size()) throw ArtifactError("an index has different numbers of hashes and rows");
      hashes_ = CheckedHashes(hashes.as<uint64_t>(Dtype::kUint64), hashes.size(), starts.as<int32_t>(Dtype::kInt32),
                              starts.size());
    } else {
      rows_ = rows.as<int64_t>(Dtype::kInt64);
      if (num_rows_ < 1) throw ArtifactError("an index has no slots");
    }
    has_strings_ = !entry["strings"].is_null();
    if (has_strings_) {
      strings_ = arrays.Text(entry["strings"]);
      for (int64_t i = 0; i < num_rows_; ++i) {
        if (small_rows_ == nullptr || small_rows_[i] - num_unknown_ >= strings_.size)
          throw ArtifactError("an index lacks its keys");
      }
    }
  }

  Vector Compute(const Vector* vectors, size_t, Scratch& scratch) const override {
    const Vector& keys = vectors[0];
    auto* rows = scratch.Take<int64_t>(keys.size);
    WithAnyType(keys.dtype, [&](auto* type) {
      using T = ValueOf<decltype(type)>;
      const auto* values = keys.as<T>();
      for (int64_t i = 0; i < keys.size; ++i) {
        const bool missing = keys.valid != nullptr ? !keys.valid[i] : IsNan(values[i]);
        rows[i] = missing ? missing_row_ : RowOf(values[i]);
      }
    });
    return {Dtype::kInt64, keys.size, rows, nullptr};
  }

 private:
  template <typename T>
  int64_t RowOf(T key) const {
    int64_t row = 0;
    if constexpr (std::is_same_v<T, std::string_view>) {
      if (has_strings_ && strings_.size > 0) {
        const int64_t at = hashes_.Find(HashString(key, seed_));
        row = at < 0 ? 0 : small_rows_[at];
        if (row != 0 && strings_[std::max<int64_t>(row - num_unknown_, 0)] != key) row = 0;
      }
    } else if (is_hashed_) {
      const int64_t at = hashes_.Find(HashId(static_cast<uint64_t>(WordOf(key))));
      row = at < 0 ? 0 : small_rows_[at];
    } else {
      // Keys outside the slots, including wrapped differences, map to the first or last slot.
      const auto slot = static_cast<int64_t>(static_cast<uint64_t>(WordOf(key)) - static_cast<uint64_t>(origin_));
      row = rows_[std::clamp<int64_t>(slot, 0, num_rows_ - 1)];
    }
    if (row == 0 && num_unknown_ > 1) row = static_cast<int64_t>(HashValue(key) % static_cast<uint64_t>(num_unknown_));
    return row;
  }

  int64_t num_unknown_, missing_row_, origin_;
  uint64_t seed_;
  bool is_hashed_ = false, has_strings_ = false;
  const int64_t* rows_ = nullptr;        // for a dense index
  const int32_t* small_rows_ = nullptr;  // for a hashed index
  int64_t num_rows_ = 0;
  Hashes hashes_;
  Strings strings_;
};

}  // namespace

Hashes CheckedHashes(const uint64_t* hashes, int64_t num_hashes, const int32_t* starts, int64_t num_starts) {
  const int64_t parts = num_starts - 1;
  if (parts < 2 || (parts & (parts - 1)) != 0) throw ArtifactError("an index has an invalid number of parts");
  bool wrong = starts[0] < 0 || starts[parts] >= num_hashes;
  for (int64_t i = 0; i < parts; ++i) wrong |= starts[i] > starts[i + 1];
  if (wrong) throw ArtifactError("the parts of an index decrease or exceed it");
  return {hashes, starts, 64 - __builtin_ctzll(static_cast<unsigned long long>(parts))};
}

Column Elementwise::Run(const Column* const* columns, size_t count, Scratch& scratch) const {
  auto* vectors = scratch.Take<Vector>(static_cast<int64_t>(count));
  for (size_t i = 0; i < count; ++i) {
    new (vectors + i) Vector(columns[i]->elements);
    if (columns[i]->is_list != columns[0]->is_list || vectors[i].size != vectors[0].size) {
      throw std::runtime_error("a step got columns of different lengths");
    }
  }
  Column made = *columns[0];
  made.elements = Compute(vectors, count, scratch);
  return made;
}

std::unique_ptr<const Step> MakeKeyIndex(const Json& entry, Arrays& arrays) {
  return std::make_unique<KeyIndex>(entry, arrays);
}

}  // namespace rankline
