// Parts of times, as in `workflows/nvt/kernels/dates.py`.
#ifndef RANKLINE_PLAN_DATES_H_
#define RANKLINE_PLAN_DATES_H_

#include <cstdint>
#include <string>

namespace rankline {

// Function from microseconds since 1970 to a part of that time.
using DatePart = int64_t (*)(int64_t micros);

// Throws ArtifactError for an unknown part.
DatePart DatePartOf(const std::string& name);

}  // namespace rankline

#endif  // RANKLINE_PLAN_DATES_H_
