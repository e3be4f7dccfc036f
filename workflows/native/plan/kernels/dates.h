// Parts of times, as `workflows/nvt/kernels/dates.py` has them.
#ifndef RANKLINE_PLAN_DATES_H_
#define RANKLINE_PLAN_DATES_H_

#include <cstdint>
#include <string>

namespace rankline {

// A function from microseconds since 1970 to a part of that time.
using DatePart = int64_t (*)(int64_t micros);

// Throws ArtifactError for a part that is not known.
DatePart DatePartOf(const std::string& name);

}  // namespace rankline

#endif  // RANKLINE_PLAN_DATES_H_
