// A plan as C functions, through which tests compare it with the Python runtime.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "plan/plan.h"

namespace {

using rankline::Tensor;

struct Opened {
  std::unique_ptr<rankline::Plan> plan;
  rankline::Scratch scratch;
};

// As ctypes passes it: strings are pointers and lengths.
struct PlainTensor {
  int32_t dtype;
  int64_t rows;
  int64_t width;
  void* data;
};
struct PlainString {
  const char* data;
  int64_t size;
};

using Allocate = void* (*)(int64_t output, int64_t rows, int64_t width);

class CallbackSink : public rankline::Sink {
 public:
  explicit CallbackSink(::Allocate allocate) : allocate_(allocate) {}
  void* Allocate(size_t output, int64_t rows, int64_t width) override {
    return allocate_(static_cast<int64_t>(output), rows, width);
  }

 private:
  ::Allocate allocate_;
};

void Say(const char* what, char* error, size_t size) { std::snprintf(error, size, "%s", what); }

}  // namespace

#define RANKLINE_EXPORT extern "C" __attribute__((visibility("default")))

// A plan, or null and why; `candidates` has commas between the names.
RANKLINE_EXPORT void* rankline_plan_open(const char* directory, const char* candidates, int64_t max_list_length,
                                         char* error, size_t size) {
  try {
    std::vector<std::string> names;
    for (const char* at = candidates; *at != 0;) {
      const size_t length = std::strcspn(at, ",");
      names.emplace_back(at, length);
      at += length + (at[length] == ',');
    }
    auto opened = std::make_unique<Opened>();
    opened->plan = std::make_unique<rankline::Plan>(directory, names, max_list_length);
    return opened.release();
  } catch (const std::exception& problem) {
    Say(problem.what(), error, size);
    return nullptr;
  }
}

RANKLINE_EXPORT void rankline_plan_close(void* plan) { delete static_cast<Opened*>(plan); }

// 0, 1 where the request is wrong, or 2 where something else is.
RANKLINE_EXPORT int rankline_plan_run(void* plan, const PlainTensor* given, size_t count, Allocate allocate,
                                      char* error, size_t size) {
  auto* opened = static_cast<Opened*>(plan);
  try {
    std::vector<Tensor> tensors(count);
    std::vector<std::vector<std::string_view>> texts(count);
    for (size_t i = 0; i < count; ++i) {
      tensors[i] = {static_cast<rankline::Dtype>(given[i].dtype), given[i].rows, given[i].width, given[i].data};
      if (tensors[i].dtype != rankline::Dtype::kString || given[i].data == nullptr) continue;
      const auto* strings = static_cast<const PlainString*>(given[i].data);
      texts[i].reserve(static_cast<size_t>(given[i].rows * given[i].width) + 1);
      for (int64_t k = 0; k < given[i].rows * given[i].width; ++k) {
        texts[i].emplace_back(strings[k].data, static_cast<size_t>(strings[k].size));
      }
      tensors[i].data = texts[i].data();
    }
    CallbackSink sink(allocate);
    opened->plan->Run(tensors, opened->scratch, sink);
    return 0;
  } catch (const rankline::RequestError& problem) {
    Say(problem.what(), error, size);
    return 1;
  } catch (const std::exception& problem) {
    Say(problem.what(), error, size);
    return 2;
  }
}
