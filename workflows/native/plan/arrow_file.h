// One array of a plan: an Arrow IPC file with a record batch of one column, mapped into memory.
#ifndef RANKLINE_PLAN_ARROW_FILE_H_
#define RANKLINE_PLAN_ARROW_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rankline {

// The column as it lies in the file. Its type is not looked at: the plan says what it is.
struct ArrowArray {
  int64_t length = 0;
  std::vector<std::string_view> buffers;  // without the one that says what is null: nothing is
};

// Throws ArtifactError: the file is cut short, contradicts itself, is compressed or holds nulls.
ArrowArray ReadArrow(std::string_view file);

}  // namespace rankline

#endif  // RANKLINE_PLAN_ARROW_FILE_H_
