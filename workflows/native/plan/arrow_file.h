// Arrays of a plan: memory-mapped Arrow IPC files with one record batch of one column.
#ifndef RANKLINE_PLAN_ARROW_FILE_H_
#define RANKLINE_PLAN_ARROW_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rankline {

// The column as stored in the file. Its Arrow type is ignored, because the plan states the type.
struct ArrowArray {
  int64_t length = 0;
  std::vector<std::string_view> buffers;  // without the validity buffer, as there are no nulls
};

// Throws ArtifactError if the file is truncated, inconsistent or compressed, or contains nulls.
ArrowArray ReadArrow(std::string_view file);

}  // namespace rankline

#endif  // RANKLINE_PLAN_ARROW_FILE_H_
