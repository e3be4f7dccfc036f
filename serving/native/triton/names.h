// Names of tensors and of other parts of a config, and lists of them.
#ifndef RANKLINE_TRITON_NAMES_H_
#define RANKLINE_TRITON_NAMES_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace rankline {

constexpr std::string_view kValues = "__values", kLengths = "__nnzs", kMask = "__valid";  // ends of tensor names

inline bool EndsWith(std::string_view name, std::string_view end) {
  return name.size() > end.size() && name.substr(name.size() - end.size()) == end;
}

// Returns names for a message: ['a', 'b'].
template <typename Names>
std::string Listed(const Names& names) {
  std::string text = "[";
  for (const std::string& name : names) text += (text.size() > 1 ? ", '" : "'") + name + "'";
  return text + "]";
}

// Splits a parameter with comma-separated names.
inline std::vector<std::string> NamesIn(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = 0; at < text.size();) {
    const size_t stop = std::min(text.find(',', at), text.size());
    names.push_back(text.substr(at, stop - at));
    at = stop + 1;
  }
  return names;
}

}  // namespace rankline

#endif  // RANKLINE_TRITON_NAMES_H_
