#include "triton/joining.h"

#include <algorithm>
#include <cstring>

#include "triton/names.h"

namespace rankline {
namespace {

// A request with a long list must not widen all requests joined with it.
constexpr int64_t kMaxPadding = 4;  // cells per value
constexpr int64_t kFewCells = 1 << 16;
// Padded candidates are scored too, so a request with many candidates must not widen the others.
constexpr int64_t kMaxPaddedScores = 2;  // per requested score
constexpr int64_t kFewScores = 256;

// Checks list lengths before joining: a list with a wrong length would read the padding of a wider request as values.
void CheckLengths(const Request& request, const std::vector<TensorSpec>& specs) {
  for (size_t i = 0; i + 1 < specs.size(); ++i) {
    if (!EndsWith(specs[i].name, kValues)) continue;
    const std::string lengths_name = specs[i].name.substr(0, specs[i].name.size() - kValues.size()).append(kLengths);
    for (size_t k = 0; k < specs.size(); ++k) {
      const Tensor& lengths = request[k];
      if (specs[k].name != lengths_name || lengths.data == nullptr || lengths.dtype != Dtype::kInt32) continue;
      const auto* length = static_cast<const int32_t*>(lengths.data);
      if (std::any_of(length, length + lengths.rows * lengths.width,
                      [&](int32_t one) { return one > request[i].width; })) {
        throw std::runtime_error(lengths_name + " has lists longer than the values of a row");
      }
    }
  }
}

}  // namespace

int64_t RowsOf(const Request& request) {
  for (const Tensor& tensor : request) {
    if (tensor.data != nullptr) return tensor.rows;
  }
  throw RequestError("the request has no input");
}

int64_t Candidates::CountOf(const Request& request, const std::vector<TensorSpec>& specs) const {
  int64_t count = -1, rows = 0;
  std::string first;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!inputs[i] || request[i].data == nullptr) continue;
    if (count >= 0 && (request[i].width != count || request[i].rows != rows)) {
      throw RequestError("columns differ in the number of candidates per row: {'" + first +
                         "': " + std::to_string(count) + ", '" + specs[i].name +
                         "': " + std::to_string(request[i].width) + "}. Pass the same number in each column.");
    }
    if (count < 0) first = specs[i].name;
    count = request[i].width, rows = request[i].rows;
  }
  if (count < 1) throw RequestError("'" + first + "' has no candidates, expected at least one per row.");
  if (max_per_row > 0 && count > max_per_row) {
    throw RequestError("'" + first + "' has " + std::to_string(count) + " candidates per row, expected at most " +
                       std::to_string(max_per_row) + ". Send fewer candidates at a time.");
  }
  if (rows * count > max_scores) {
    throw RequestError(std::to_string(rows) + " rows have " + std::to_string(count) +
                       " candidates each, expected at most " + std::to_string(max_scores) +
                       " candidates in total. Send fewer rows at a time.");
  }
  return count;
}

std::vector<std::vector<size_t>> Groups(const std::vector<const Request*>& requests,
                                        const std::vector<TensorSpec>& specs, const Candidates& candidates) {
  std::vector<std::vector<size_t>> groups;
  struct Shape {
    int64_t count;
    size_t number;
    int64_t rows;
  };
  std::vector<Shape> shapes;
  for (size_t number = 0; number < requests.size(); ++number) {
    try {
      const int64_t count = candidates.any() ? candidates.CountOf(*requests[number], specs) : 1;
      shapes.push_back({count, number, RowsOf(*requests[number])});
    } catch (const RequestError&) {
      groups.push_back({number});  // will be refused alone
    }
  }
  if (candidates.any()) {
    std::stable_sort(shapes.begin(), shapes.end(), [](const Shape& a, const Shape& b) { return a.count < b.count; });
  }
  std::vector<size_t> together;
  int64_t rows = 0, wanted = 0;
  for (const Shape& shape : shapes) {
    rows += shape.rows, wanted += shape.rows * shape.count;
    const int64_t most = std::min(std::max(kMaxPaddedScores * wanted, kFewScores), candidates.max_scores);
    if (candidates.any() && !together.empty() && rows * shape.count > most) {
      groups.push_back(std::move(together));
      together.clear();
      rows = shape.rows, wanted = shape.rows * shape.count;
    }
    together.push_back(shape.number);
  }
  if (!together.empty()) groups.push_back(std::move(together));
  return groups;
}

Request Join(const std::vector<const Request*>& requests, const std::vector<TensorSpec>& specs,
             const Candidates& candidates, Scratch& scratch) {
  for (const Request* request : requests) CheckLengths(*request, specs);
  Request joined(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    int64_t rows = 0, width = 0, cells = 0;
    size_t present = 0;
    for (const Request* request : requests) {
      const Tensor& part = (*request)[i];
      if (part.data == nullptr) continue;
      ++present;
      rows += part.rows, cells += part.rows * part.width, width = std::max(width, part.width);
    }
    if (present == 0) continue;
    if (present < requests.size()) throw std::runtime_error("some of them omit an optional input, others do not");
    const bool repeats = candidates.any() && candidates.inputs[i];
    if (!repeats && rows * width != cells && rows * width > std::max(kMaxPadding * cells, kFewCells)) {
      throw std::runtime_error("one has lists so long that " + std::to_string(cells) + " values would be padded to " +
                               std::to_string(rows * width));
    }
    const Dtype dtype = (*requests[0])[i].dtype;
    const size_t item = SizeOf(dtype), row_bytes = static_cast<size_t>(width) * item;
    auto* to = scratch.Take<char>(static_cast<int64_t>(static_cast<size_t>(rows) * row_bytes));
    joined[i] = {dtype, rows, width, to};
    for (const Request* request : requests) {
      const Tensor& part = (*request)[i];
      const auto* from = static_cast<const char*>(part.data);
      const size_t own = static_cast<size_t>(part.width) * item;
      if (own == row_bytes) {
        std::memcpy(to, from, part.num_bytes());
        to += part.num_bytes();
        continue;
      }
      for (int64_t row = 0; row < part.rows; ++row, from += own, to += row_bytes) {
        std::memcpy(to, from, own);
        for (size_t at = own; at < row_bytes; at += item) {
          if (repeats && own > 0)
            std::memcpy(to + at, from + own - item, item);
          else
            std::memset(to + at, 0, item);  // all zeros is also an empty string
        }
      }
    }
  }
  return joined;
}

}  // namespace rankline
