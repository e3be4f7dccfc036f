// What a plan computes per request: small steps over columns.
#ifndef RANKLINE_PLAN_STEP_H_
#define RANKLINE_PLAN_STEP_H_

#include <memory>

#include "json.h"
#include "plan/arrays.h"
#include "plan/column.h"

namespace rankline {

// Makes one column of one or more, of as many rows.
class Step {
 public:
  virtual ~Step() = default;

  // Throws std::exception where the columns are none that the step was made for, as those of a damaged plan.
  virtual Column Run(const Column* const* columns, size_t count, Scratch& scratch) const = 0;

  // One vector of several.
  virtual Vector Compute(const Vector* vectors, size_t count, Scratch& scratch) const = 0;
};

// A step of plan.json: one of those in `workflows/plan/steps.py`, or a KeyIndex. Throws ArtifactError.
std::unique_ptr<const Step> MakeStep(const Json& entry, Arrays& arrays);

// The same for one of the `members` columns of a stack; see `workflows/plan/stacks.py`.
std::unique_ptr<const Step> MakeMemberStep(const Json& entry, Arrays& arrays, int64_t member, int64_t members);

// A KeyIndex, which finds the table row of a key; see `workflows/plan/key_index.py`.
std::unique_ptr<const Step> MakeKeyIndex(const Json& entry, Arrays& arrays);

// A step on elements of lists as on single values.
class Elementwise : public Step {
 public:
  Column Run(const Column* const* columns, size_t count, Scratch& scratch) const override;
};

// Sorted hashes, parted by their first bits, and where each part begins; see `workflows/plan/key_index.py`.
struct Hashes {
  const uint64_t* hashes = nullptr;
  const int32_t* starts = nullptr;
  int shift = 0;

  // Where a hash is; -1 where it is not.
  int64_t Find(uint64_t hash) const {
    const uint64_t part = hash >> shift;
    for (int32_t at = starts[part]; at < starts[part + 1]; ++at) {
      if (hashes[at] == hash) return at;
    }
    return -1;
  }
};

// The hashes of one index among `num_hashes`, the last of which stands at the end. Throws ArtifactError.
Hashes CheckedHashes(const uint64_t* hashes, int64_t num_hashes, const int32_t* starts, int64_t num_starts);

}  // namespace rankline

#endif  // RANKLINE_PLAN_STEP_H_
