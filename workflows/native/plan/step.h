// Steps of a plan: small computations on columns.
#ifndef RANKLINE_PLAN_STEP_H_
#define RANKLINE_PLAN_STEP_H_

#include <memory>

#include "json.h"
#include "plan/arrays.h"
#include "plan/column.h"

namespace rankline {

// Computes a column from one or more columns with the same number of rows.
class Step {
 public:
  virtual ~Step() = default;

  // Throws std::exception if the columns do not fit the step, as in a damaged plan.
  virtual Column Run(const Column* const* columns, size_t count, Scratch& scratch) const = 0;
};

// Returns a step of plan.json: a step of `workflows/plan/steps.py`, or a KeyIndex. Throws ArtifactError.
std::unique_ptr<const Step> MakeStep(const Json& entry, Arrays& arrays);

// Like MakeStep, for one of the `members` columns of a stack; see `workflows/plan/stacks.py`.
std::unique_ptr<const Step> MakeMemberStep(const Json& entry, Arrays& arrays, int64_t member, int64_t members);

// Returns a KeyIndex, which maps keys to table rows; see `workflows/plan/key_index.py`.
std::unique_ptr<const Step> MakeKeyIndex(const Json& entry, Arrays& arrays);

// A step that treats elements of lists like single values.
class Elementwise : public Step {
 public:
  Column Run(const Column* const* columns, size_t count, Scratch& scratch) const override;

 protected:
  virtual Vector Compute(const Vector* vectors, size_t count, Scratch& scratch) const = 0;
};

// Sorted hashes, partitioned by their first bits, with the start of each part; see `workflows/plan/key_index.py`.
struct Hashes {
  const uint64_t* hashes = nullptr;
  const int32_t* starts = nullptr;
  int shift = 0;

  // Returns the position of a hash, or -1 if it is absent.
  int64_t Find(uint64_t hash) const {
    const uint64_t part = hash >> shift;
    for (int32_t at = starts[part]; at < starts[part + 1]; ++at) {
      if (hashes[at] == hash) return at;
    }
    return -1;
  }
};

// Returns the hashes of an index after checking `starts`; `hashes` has one extra element at the end.
//
// Throws ArtifactError.
Hashes CheckedHashes(const uint64_t* hashes, int64_t num_hashes, const int32_t* starts, int64_t num_starts);

}  // namespace rankline

#endif  // RANKLINE_PLAN_STEP_H_
