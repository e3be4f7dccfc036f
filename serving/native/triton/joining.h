// Requests that wait are joined into one run of a model and split again, as `serving/python_backends/batching.py` does
// it.
#ifndef RANKLINE_TRITON_JOINING_H_
#define RANKLINE_TRITON_JOINING_H_

#include <string>
#include <vector>

#include "plan/scratch.h"
#include "tensor.h"

namespace rankline {

// A request's tensors, one for each input of the config; data is null for one that is left out.
using Request = std::vector<Tensor>;

// Rows with several candidates, as `serving/python_backends/candidates.py` has them.
struct Candidates {
  std::vector<bool> inputs;  // by position: holds a value per candidate
  std::vector<bool> outputs;
  int64_t max_per_row = 0;  // 0 for any number
  int64_t max_scores = 0;   // of all rows of a run

  bool any() const { return !inputs.empty(); }

  // Candidates of each row. Throws RequestError: there are none, too many, or not as many of each input.
  int64_t CountOf(const Request& request, const std::vector<TensorSpec>& specs) const;
};

// Which requests are worth a run together, by their numbers: those with about as many candidates; all, without any.
std::vector<std::vector<size_t>> Groups(const std::vector<const Request*>& requests,
                                        const std::vector<TensorSpec>& specs, const Candidates& candidates);

// One request made of several. Rows of lists are padded to the longest, those of candidates with their last one.
//
// Throws std::runtime_error: some leave out what others have, or so much would be padded that it is not worth it.
Request Join(const std::vector<const Request*>& requests, const std::vector<TensorSpec>& specs,
             const Candidates& candidates, Scratch& scratch);

// Rows of a request: of any tensor that is there. Throws RequestError where there is none.
int64_t RowsOf(const Request& request);

}  // namespace rankline

#endif  // RANKLINE_TRITON_JOINING_H_
