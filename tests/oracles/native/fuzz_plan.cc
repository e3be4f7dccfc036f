// Damages saved plans and sends odd requests to those that still load. Built with sanitizers, it ends at the first
// read or write past an end; else it prints what became of plans and requests.
//
//     fuzz_plan SEED PLANS REQUESTS DIRECTORY…     REQUESTS of each plan that loads; a plan as it is comes first
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>

#include "damage.h"
#include "plan/plan.h"

namespace {

namespace fs = std::filesystem;
using rankline::Dtype;
using rankline::Tensor;

// Memory of exactly what was asked for, so that one byte more is seen.
class ExactSink : public rankline::Sink {
 public:
  explicit ExactSink(const rankline::Plan& plan) : plan_(plan) {}
  void* Allocate(size_t output, int64_t rows, int64_t width) override {
    const auto bytes = static_cast<size_t>(rows * width) * rankline::SizeOf(plan_.outputs().at(output).dtype);
    if (rows < 0 || width < 0 || bytes > (size_t{1} << 28)) throw std::bad_alloc();
    memory_.emplace_back(new char[bytes]);
    return memory_.back().get();
  }

 private:
  const rankline::Plan& plan_;
  std::vector<std::unique_ptr<char[]>> memory_;
};

void Ask(const rankline::Plan& plan, rankline::Scratch& scratch, std::map<std::string, int64_t>& became) {
  static const std::vector<std::string> kTexts = {
      "", "a", "0f", "68fd1e64", std::string(129, 'x'), std::string(300, 'y'), "\xff\0é"};
  const int64_t rows = Below(6);
  std::vector<std::unique_ptr<char[]>> memory;
  std::vector<Tensor> given;
  for (const rankline::TensorSpec& spec : plan.inputs()) {
    Tensor tensor{spec.dtype, Below(20) == 0 ? Below(6) : rows, spec.width == 1 ? 1 : Below(6), nullptr};
    if (Below(30) == 0) tensor.width = Below(4);
    if (Below(100) == 0) tensor.dtype = Dtype::kInt8;
    const int64_t count = tensor.rows * tensor.width;
    if (Below(10) != 0) {
      const size_t item = rankline::SizeOf(tensor.dtype);
      memory.emplace_back(new char[static_cast<size_t>(count) * item]);
      char* to = memory.back().get();
      for (int64_t i = 0; i < count; ++i, to += item) {
        if (tensor.dtype == Dtype::kString) {
          new (to) std::string_view(OneOf(kTexts));
        } else if (tensor.dtype == Dtype::kBool) {
          *to = static_cast<char>(Below(2));
        } else if (spec.name.find("__nnzs") != std::string::npos && Below(10) != 0) {
          const auto length = static_cast<int32_t>(Below(7) - 1);
          std::memcpy(to, &length, item < 4 ? item : 4);
        } else {
          int64_t value = Below(3) == 0 ? OneOf(kNumbers) : Below(20);
          const auto as_double = static_cast<double>(value);
          const auto as_float = static_cast<float>(value);
          std::memcpy(to,
                      tensor.dtype == Dtype::kFloat64   ? static_cast<const void*>(&as_double)
                      : tensor.dtype == Dtype::kFloat32 ? static_cast<const void*>(&as_float)
                                                        : &value,
                      item);
        }
      }
      tensor.data = memory.back().get();
    }
    given.push_back(tensor);
  }
  ExactSink sink(plan);
  try {
    plan.Run(given, scratch, sink);
    ++became["answered"];
  } catch (const rankline::RequestError&) {
    ++became["refused"];
  } catch (const std::exception&) {
    ++became["failed"];
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5) return 2;
  random_bits.seed(std::stoull(arguments[1]));
  const int64_t plans = std::stoll(arguments[2]), requests = std::stoll(arguments[3]);
  std::vector<std::map<std::string, std::string>> whole;
  for (int i = 4; i < count; ++i) {
    whole.emplace_back();
    for (const auto& entry : fs::directory_iterator(arguments[i]))
      whole.back()[entry.path().filename()] = Read(entry.path());
  }
  const fs::path directory = fs::temp_directory_path() / ("fuzz-" + std::to_string(std::random_device()()));
  fs::create_directories(directory);
  std::map<std::string, int64_t> became;
  rankline::Scratch scratch;
  for (int64_t number = 0; number < plans; ++number) {
    auto files = number < static_cast<int64_t>(whole.size()) ? whole[static_cast<size_t>(number)] : OneOf(whole);
    if (number >= static_cast<int64_t>(whole.size())) {
      auto damaged = std::next(files.begin(), Below(static_cast<int64_t>(files.size())));
      if (Below(2) == 0) damaged = files.find("plan.json");
      if (damaged->first == "plan.json" && Below(4) != 0)
        DamageJson(damaged->second);
      else
        DamageBytes(damaged->second);
    }
    for (const auto& [name, bytes] : files) std::ofstream(directory / name, std::ios::binary) << bytes;
    try {
      const rankline::Plan plan(directory, {}, Below(3) == 0 ? 4 : 0);
      ++became["loaded"];
      for (int64_t i = 0; i < requests; ++i) Ask(plan, scratch, became);
    } catch (const rankline::ArtifactError&) {
      ++became["refused to load"];
    }
  }
  fs::remove_all(directory);
  for (const auto& [what, times] : became) std::cout << what << " " << times << "\n";
}
