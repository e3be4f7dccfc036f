#include "json.h"

#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "tensor.h"

namespace rankline {
namespace {

constexpr int kMaxDepth = 64;
const char* const kKinds[] = {"null", "a boolean", "a whole number", "a number", "a string", "an array", "an object"};

}  // namespace

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : at_(text.data()), end_(text.data() + text.size()), begin_(at_) {}

  Json Whole() {
    Json value = Value(0);
    Space();
    if (at_ != end_) Fail("nothing more");
    return value;
  }

 private:
  [[noreturn]] void Fail(const char* expected) const {
    throw ArtifactError("not JSON: expected " + std::string(expected) + " at byte " + std::to_string(at_ - begin_));
  }

  void Space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }

  bool Word(std::string_view word) {
    if (static_cast<size_t>(end_ - at_) < word.size() || std::string_view(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool Sign(char sign) {
    Space();
    if (at_ == end_ || *at_ != sign) return false;
    ++at_;
    return true;
  }

  Json Value(int depth) {
    if (depth > kMaxDepth) Fail("less depth");
    Space();
    if (at_ == end_) Fail("a value");
    Json value;
    if (*at_ == '{') {
      value.kind_ = Json::Kind::kObject;
      ++at_;
      if (Sign('}')) return value;
      do {
        Space();
        std::string name = String();
        if (!Sign(':')) Fail("':'");
        value.object_[std::move(name)] = Value(depth + 1);
      } while (Sign(','));
      if (!Sign('}')) Fail("'}'");
    } else if (*at_ == '[') {
      value.kind_ = Json::Kind::kArray;
      ++at_;
      if (Sign(']')) return value;
      do {
        value.array_.push_back(Value(depth + 1));
      } while (Sign(','));
      if (!Sign(']')) Fail("']'");
    } else if (*at_ == '"') {
      value.kind_ = Json::Kind::kString;
      value.string_ = String();
    } else if (Word("null")) {
      value.kind_ = Json::Kind::kNull;
    } else if (Word("true") || Word("false")) {
      value.kind_ = Json::Kind::kBool;
      value.boolean_ = at_[-2] == 'u';  // tr-u-e
    } else {
      Number(value);
    }
    return value;
  }

  void Number(Json& value) {
    value.kind_ = Json::Kind::kFloat;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (Word("NaN")) {
      value.number_ = std::numeric_limits<double>::quiet_NaN();
    } else if (Word("Infinity")) {
      value.number_ = kInfinity;
    } else if (Word("-Infinity")) {
      value.number_ = -kInfinity;
    } else {
      const char* stop = at_;
      while (stop != end_ && ((*stop >= '0' && *stop <= '9') || *stop == '-' || *stop == '+' || *stop == '.' ||
                              *stop == 'e' || *stop == 'E')) {
        ++stop;
      }
      const auto as_float = std::from_chars(at_, stop, value.number_);
      if (as_float.ec != std::errc() || as_float.ptr != stop || stop == at_) Fail("a number");
      uint64_t large = 0;
      const auto fits = [&](auto& into) {
        const auto read = std::from_chars(at_, stop, into);
        return read.ec == std::errc() && read.ptr == stop;
      };
      if (fits(value.integer_)) {
        value.kind_ = Json::Kind::kInteger;
      } else if (fits(large)) {
        value.kind_ = Json::Kind::kInteger;
        value.integer_ = static_cast<int64_t>(large);
      }
      at_ = stop;
    }
  }

  uint32_t FourDigits() {
    if (end_ - at_ < 4) Fail("four hexadecimal digits");
    uint32_t code = 0;
    const auto read = std::from_chars(at_, at_ + 4, code, 16);
    if (read.ptr != at_ + 4) Fail("four hexadecimal digits");
    at_ += 4;
    return code;
  }

  void Escape(std::string& text) {
    if (at_ == end_) Fail("a character");
    const char sign = *at_++;
    constexpr std::string_view kSigns = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (const size_t which = kSigns.find(sign); which != std::string_view::npos) {
      text += kMeant[which];
      return;
    }
    if (sign != 'u') Fail("an escape");
    uint32_t code = FourDigits();
    if (code >= 0xD800 && code < 0xDC00 && Word("\\u")) {
      code = 0x10000 + ((code - 0xD800) << 10) + ((FourDigits() - 0xDC00) & 0x3FF);
    }
    const auto byte = [&](uint32_t bits) { text += static_cast<char>(bits); };
    if (code < 0x80) {
      byte(code);
    } else if (code < 0x800) {
      byte(0xC0 | (code >> 6)), byte(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      byte(0xE0 | (code >> 12)), byte(0x80 | ((code >> 6) & 0x3F)), byte(0x80 | (code & 0x3F));
    } else {
      byte(0xF0 | (code >> 18)), byte(0x80 | ((code >> 12) & 0x3F));
      byte(0x80 | ((code >> 6) & 0x3F)), byte(0x80 | (code & 0x3F));
    }
  }

  std::string String() {
    if (at_ == end_ || *at_ != '"') Fail("a string");
    ++at_;
    std::string text;
    while (at_ != end_ && *at_ != '"') {
      if (static_cast<unsigned char>(*at_) < 0x20) Fail("no control character");
      if (*at_ != '\\') {
        text += *at_++;
        continue;
      }
      ++at_;
      Escape(text);
    }
    if (at_ == end_) Fail("'\"'");
    ++at_;
    return text;
  }

  const char* at_;
  const char* end_;
  const char* begin_;
};

Json Json::Parse(std::string_view text) { return JsonReader(text).Whole(); }

const Json& Json::Checked(Kind expected) const {
  if (kind_ != expected && !(expected == Kind::kFloat && kind_ == Kind::kInteger)) {
    throw ArtifactError(std::string("found ") + kKinds[static_cast<size_t>(kind_)] + ", expected " +
                        kKinds[static_cast<size_t>(expected)]);
  }
  return *this;
}

const Json& Json::operator[](const std::string& name) const {
  const auto found = object().find(name);
  if (found == object_.end()) throw ArtifactError("missing field " + name);
  return found->second;
}

const Json& Json::Get(const std::string& name) const {
  static const Json kNothing;
  const auto found = object().find(name);
  return found == object_.end() ? kNothing : found->second;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw ArtifactError(path + " cannot be read");
  return text.str();
}

}  // namespace rankline
