// SHA-256 (FIPS 180-4).
#ifndef RANKLINE_SHA256_H_
#define RANKLINE_SHA256_H_

#include <string>
#include <string_view>

namespace rankline {

// Returns the digest as 64 hexadecimal digits.
std::string Sha256(std::string_view bytes);

}  // namespace rankline

#endif  // RANKLINE_SHA256_H_
