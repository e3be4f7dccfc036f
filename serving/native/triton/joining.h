// Joins waiting requests into one run of a model and splits the outputs, like `serving/python_backends/batching.py`.
#ifndef RANKLINE_TRITON_JOINING_H_
#define RANKLINE_TRITON_JOINING_H_

#include <string>
#include <vector>

#include "plan/scratch.h"
#include "tensor.h"

namespace rankline {

// A request's tensors, one per input of the config; data is null for a missing input.
using Request = std::vector<Tensor>;

// Rows with several candidates, as in `serving/python_backends/requests.py`.
struct Candidates {
  std::vector<bool> inputs;  // by position: whether the input has a value per candidate
  std::vector<bool> outputs;
  int64_t max_per_row = 0;  // 0: unlimited
  int64_t max_scores = 0;   // in one run

  bool any() const { return !inputs.empty(); }

  // Returns the number of candidates per row. Throws RequestError if it is 0, too large, or differs between inputs.
  int64_t CountOf(const Request& request, const std::vector<TensorSpec>& specs) const;
};

// Groups the indices of requests worth joining: requests with similar numbers of candidates, or all without candidates.
std::vector<std::vector<size_t>> Groups(const std::vector<const Request*>& requests,
                                        const std::vector<TensorSpec>& specs, const Candidates& candidates);

// Joins several requests into one. Lists are padded to the longest, and candidates with the row's last candidate.
//
// Throws std::runtime_error if the requests have different inputs, or would need too much padding.
Request Join(const std::vector<const Request*>& requests, const std::vector<TensorSpec>& specs,
             const Candidates& candidates, Scratch& scratch);

// Returns the number of rows of a request, from any present tensor. Throws RequestError if there is none.
int64_t RowsOf(const Request& request);

}  // namespace rankline

#endif  // RANKLINE_TRITON_JOINING_H_
