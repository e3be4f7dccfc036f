// C functions with which Python runs a plan in its own process; see `workflows/plan/native_library.py`.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "plan/plan.h"

namespace {

using rankline::Tensor;

// A tensor passed from Python; strings are the offsets and bytes of an Arrow array.
struct PlainTensor {
  int64_t dtype;
  int64_t rows;
  int64_t width;
  const void* data;
  const int64_t* offsets;
};

using Allocate = void* (*)(int64_t output, int64_t rows, int64_t width);

class CallbackSink : public rankline::Sink {
 public:
  explicit CallbackSink(::Allocate allocate) : allocate_(allocate) {}
  void* Allocate(size_t output, int64_t rows, int64_t width) override {
    void* memory = allocate_(static_cast<int64_t>(output), rows, width);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }

 private:
  ::Allocate allocate_;
};

void Say(const char* what, char* error, size_t size) { std::snprintf(error, size, "%s", what); }

// Returns the tensors of a request; their strings are views in `texts`.
std::vector<Tensor> TensorsOf(const PlainTensor* given, size_t count, std::vector<std::string_view>& texts) {
  std::vector<Tensor> tensors(count);
  int64_t num_texts = 0;
  for (size_t i = 0; i < count; ++i) {
    tensors[i] = {static_cast<rankline::Dtype>(given[i].dtype), given[i].rows, given[i].width, given[i].data};
    if (given[i].offsets != nullptr) num_texts += given[i].rows * given[i].width;
  }
  texts.resize(static_cast<size_t>(num_texts) + 1);  // one extra, to have an address even if there are none
  std::string_view* next = texts.data();
  for (size_t i = 0; i < count; ++i) {
    const int64_t* offsets = given[i].offsets;
    if (offsets == nullptr) continue;
    tensors[i].data = next;
    for (int64_t k = 0; k < given[i].rows * given[i].width; ++k) {
      *next++ = {static_cast<const char*>(given[i].data) + offsets[k],
                 static_cast<size_t>(offsets[k + 1] - offsets[k])};
    }
  }
  return tensors;
}

}  // namespace

#define RANKLINE_EXPORT extern "C" __attribute__((visibility("default")))

// Returns a plan, or null and an error message; `candidates` are names separated by commas.
RANKLINE_EXPORT void* rankline_plan_open(const char* directory, const char* candidates, int64_t max_list_length,
                                         char* error, size_t size) {
  try {
    std::vector<std::string> names;
    for (const char* at = candidates; *at != 0;) {
      const size_t length = std::strcspn(at, ",");
      names.emplace_back(at, length);
      at += length + (at[length] == ',');
    }
    return std::make_unique<rankline::Plan>(directory, names, max_list_length).release();
  } catch (const std::exception& problem) {
    Say(problem.what(), error, size);
    return nullptr;
  }
}

RANKLINE_EXPORT void rankline_plan_close(void* plan) { delete static_cast<rankline::Plan*>(plan); }

// Returns 0 on success, 1 for an invalid request, and 2 for other errors. Thread-safe for a plan.
RANKLINE_EXPORT int rankline_plan_run(void* plan, const PlainTensor* given, size_t count, Allocate allocate,
                                      char* error, size_t size) {
  static thread_local rankline::Scratch scratch;
  static thread_local std::vector<std::string_view> texts;
  try {
    CallbackSink sink(allocate);
    static_cast<const rankline::Plan*>(plan)->Run(TensorsOf(given, count, texts), scratch, sink);
    return 0;
  } catch (const rankline::RequestError& problem) {
    Say(problem.what(), error, size);
    return 1;
  } catch (const std::exception& problem) {
    Say(problem.what(), error, size);
    return 2;
  }
}
