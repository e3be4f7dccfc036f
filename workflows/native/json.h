// Reads JSON as Python's json module writes it, NaN and Infinity included. Nothing is trusted: depth and numbers are
// bounded, and whatever a caller asks of a value is checked.
#ifndef RANKLINE_JSON_H_
#define RANKLINE_JSON_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rankline {

class Json {
 public:
  enum class Kind { kNull, kBool, kInteger, kFloat, kString, kArray, kObject };

  // Throws ArtifactError: not JSON.
  static Json Parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_object() const { return kind_ == Kind::kObject; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_number() const { return kind_ == Kind::kInteger || kind_ == Kind::kFloat; }

  // Each throws ArtifactError for a value of another kind.
  bool boolean() const;
  int64_t integer() const;  // what does not fit into 64 bits is refused; from 2^63 on it is the bits of a uint64
  double number() const;    // of integers, too
  const std::string& string() const;
  const std::vector<Json>& array() const;
  const std::map<std::string, Json>& object() const;

  // A member of an object; throws ArtifactError where there is none.
  const Json& operator[](const std::string& name) const;
  // The same, or null.
  const Json& Get(const std::string& name) const;

 private:
  friend class JsonReader;

  Kind kind_ = Kind::kNull;
  bool boolean_ = false;
  int64_t integer_ = 0;
  double number_ = 0;
  std::string string_;
  std::vector<Json> array_;
  std::map<std::string, Json> object_;
};

// Throws ArtifactError: it cannot be read.
std::string ReadFile(const std::string& path);

}  // namespace rankline

#endif  // RANKLINE_JSON_H_
