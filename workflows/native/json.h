// Reads JSON written by Python's json module, including NaN and Infinity. Input is untrusted: depth and numbers are
// bounded, and accessors check the type of a value.
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

  // Throws ArtifactError if the text is not JSON.
  static Json Parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_number() const { return kind_ == Kind::kInteger || kind_ == Kind::kFloat; }

  // Each throws ArtifactError for a value of another type.
  bool boolean() const { return Checked(Kind::kBool).boolean_; }
  int64_t integer() const { return Checked(Kind::kInteger).integer_; }  // at most 64 bits; from 2^63, those of a uint64
  double number() const { return Checked(Kind::kFloat).number_; }       // also accepts integers
  const std::string& string() const { return Checked(Kind::kString).string_; }
  const std::vector<Json>& array() const { return Checked(Kind::kArray).array_; }
  const std::map<std::string, Json>& object() const { return Checked(Kind::kObject).object_; }

  // Returns a member of an object; throws ArtifactError if it is missing.
  const Json& operator[](const std::string& name) const;
  // Returns a member of an object, or null.
  const Json& Get(const std::string& name) const;

 private:
  friend class JsonReader;

  const Json& Checked(Kind expected) const;

  Kind kind_ = Kind::kNull;
  bool boolean_ = false;
  int64_t integer_ = 0;
  double number_ = 0;
  std::string string_;
  std::vector<Json> array_;
  std::map<std::string, Json> object_;
};

// Throws ArtifactError if the file cannot be read.
std::string ReadFile(const std::string& path);

}  // namespace rankline

#endif  // RANKLINE_JSON_H_
