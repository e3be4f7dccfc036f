// What fuzzers share: drawn numbers, and damage to files.
#ifndef RANKLINE_TESTS_DAMAGE_H_
#define RANKLINE_TESTS_DAMAGE_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

inline thread_local std::mt19937_64 random_bits;

inline int64_t Below(int64_t limit) { return static_cast<int64_t>(random_bits() % static_cast<uint64_t>(limit)); }

template <typename T>
const T& OneOf(const std::vector<T>& values) {
  return values[static_cast<size_t>(Below(static_cast<int64_t>(values.size())))];
}

inline const std::vector<int64_t> kNumbers = {0,  1,   -1,        2,         7,         64,        255,       1 << 16,
                                              -2, -64, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 1LL << 40, 3};

inline void DamageBytes(std::string& bytes) {
  for (int64_t times = 1 + Below(4); times > 0 && !bytes.empty(); --times) {
    const auto at = static_cast<size_t>(Below(static_cast<int64_t>(bytes.size())));
    const int64_t number = OneOf(kNumbers);
    switch (Below(4)) {
      case 0:
        bytes[at] = static_cast<char>(Below(256));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.replace(at / 8 * 8, 8, reinterpret_cast<const char*>(&number), 8);
        break;
      default:
        bytes.replace(at / 4 * 4, 4, reinterpret_cast<const char*>(&number), 4);
    }
  }
}

// Another number, word or name in place of one: what stays JSON is read further.
inline void DamageJson(std::string& text) {
  static const std::vector<std::string> kWords = {"null",
                                                  "true",
                                                  "[]",
                                                  "{}",
                                                  "\"int8\"",
                                                  "\"float32\"",
                                                  "\"object\"",
                                                  "\"KeyIndex\"",
                                                  "\"Lists\"",
                                                  "\"Vector\"",
                                                  "NaN",
                                                  "1e308",
                                                  "\"Pad\"",
                                                  "\"Slice\"",
                                                  "\"Column\"",
                                                  "\"array-0.arrow\"",
                                                  "\"../plan.json\""};
  std::vector<std::pair<size_t, size_t>> tokens;
  for (size_t at = 0; at < text.size();) {
    size_t stop = text.find_first_of(",:[]{} \n", at);
    if (stop == std::string::npos) stop = text.size();
    if (stop > at) tokens.emplace_back(at, stop - at);
    at = stop + 1;
  }
  for (int64_t times = 1 + Below(2); times > 0 && !tokens.empty(); --times) {
    const auto [at, size] = OneOf(tokens);
    switch (Below(3)) {
      case 0:
        text.replace(at, size, std::to_string(OneOf(kNumbers)));
        return;
      case 1:
        text.replace(at, size, OneOf(kWords));
        return;
      default: {
        const auto [other, length] = OneOf(tokens);
        text.replace(at, size, std::string(text, other, length));
        return;
      }
    }
  }
}

inline std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

#endif  // RANKLINE_TESTS_DAMAGE_H_
