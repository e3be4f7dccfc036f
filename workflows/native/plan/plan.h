// Runs the transform of a serving graph, compiled and saved by `workflows/plan`, without Python.
#ifndef RANKLINE_PLAN_PLAN_H_
#define RANKLINE_PLAN_PLAN_H_

#include <memory>
#include <string>
#include <vector>

#include "plan/scratch.h"
#include "tensor.h"

namespace rankline {

// A memory-mapped plan. It is immutable, so threads can run it concurrently, each with its own Scratch.
class Plan {
 public:
  // Maps a directory written by `TransformPlan.save`.
  //
  // candidates: raw columns that may hold several values per row, [num_rows, num_candidates].
  // max_list_length: maximum length of a row's list; 0 for any length.
  //
  // Throws ArtifactError if the plan is missing, damaged or of another version, or does not support candidates.
  Plan(const std::string& directory, const std::vector<std::string>& candidates, int64_t max_list_length);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Tensors of a request, named as in `ColumnSpec.tensors` and `ColumnSpec.mask`.
  const std::vector<TensorSpec>& inputs() const;
  // Output tensors, in the workflow's order; a list has two.
  const std::vector<TensorSpec>& outputs() const;

  // Transforms the rows of one request.
  //
  // given: one tensor for each of inputs(); data is null for a missing input.
  //
  // Throws RequestError for an invalid request.
  void Run(const std::vector<Tensor>& given, Scratch& scratch, Sink& sink) const;

 private:
  class Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace rankline

#endif  // RANKLINE_PLAN_PLAN_H_
