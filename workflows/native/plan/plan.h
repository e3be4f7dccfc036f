// The transform of one serving graph: what `workflows/plan` compiles and saves, run without Python.
#ifndef RANKLINE_PLAN_PLAN_H_
#define RANKLINE_PLAN_PLAN_H_

#include <memory>
#include <string>
#include <vector>

#include "plan/scratch.h"
#include "tensor.h"

namespace rankline {

// A plan, mapped into memory. It never changes, so all threads may run it at once, each with a Scratch of its own.
class Plan {
 public:
  // Maps the directory that `TransformPlan.save` wrote.
  //
  // candidates: raw columns that may hold several values per row, [num_rows, num_candidates].
  // max_list_length: most values of a list of one row; 0 for any number.
  //
  // Throws ArtifactError: missing, damaged, of another version, or it cannot be run for several candidates.
  Plan(const std::string& directory, const std::vector<std::string>& candidates, int64_t max_list_length);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Tensors of a request, as `ColumnSpec.tensors` and `ColumnSpec.mask` name them.
  const std::vector<TensorSpec>& inputs() const;
  // Tensors that come out, in the workflow's order; a list is two of them.
  const std::vector<TensorSpec>& outputs() const;

  // Transforms the rows of one request.
  //
  // given: a tensor for each of inputs(); data is null for one that the request leaves out.
  //
  // Throws RequestError.
  void Run(const std::vector<Tensor>& given, Scratch& scratch, Sink& sink) const;

 private:
  class Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace rankline

#endif  // RANKLINE_PLAN_PLAN_H_
