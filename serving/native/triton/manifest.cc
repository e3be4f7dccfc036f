#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "json.h"
#include "mapped_file.h"
#include "tensor.h"
#include "triton/backend.h"

namespace rankline {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormatVersion = 1;

constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t Rotated(uint32_t word, int bits) { return (word >> bits) | (word << (32 - bits)); }

void Mix(uint32_t* state, const unsigned char* block) {
  uint32_t words[64];
  for (size_t i = 0; i < 16; ++i) {
    uint32_t word;
    std::memcpy(&word, block + 4 * i, 4);
    words[i] = __builtin_bswap32(word);
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + (Rotated(a, 7) ^ Rotated(a, 18) ^ (a >> 3)) + words[i - 7] +
               (Rotated(b, 17) ^ Rotated(b, 19) ^ (b >> 10));
  }
  uint32_t s[8];
  std::memcpy(s, state, sizeof(s));
  for (int i = 0; i < 64; ++i) {
    const uint32_t one = s[7] + (Rotated(s[4], 6) ^ Rotated(s[4], 11) ^ Rotated(s[4], 25)) +
                         ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRounds[i] + words[i];
    const uint32_t two =
        (Rotated(s[0], 2) ^ Rotated(s[0], 13) ^ Rotated(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    std::memmove(s + 1, s, 7 * sizeof(*s));
    s[4] += one;
    s[0] = one + two;
  }
  for (int i = 0; i < 8; ++i) state[i] += s[i];
}

// Returns the SHA-256 (FIPS 180-4) as 64 hexadecimal digits.
std::string Sha256(std::string_view bytes) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const size_t whole = bytes.size() / 64 * 64, rest = bytes.size() - whole;
  for (size_t at = 0; at < whole; at += 64) Mix(state, data + at);
  unsigned char end[128] = {};
  if (rest != 0) std::memcpy(end, data + whole, rest);
  end[rest] = 0x80;
  const size_t size = rest < 56 ? 64 : 128;
  const uint64_t bits = __builtin_bswap64(static_cast<uint64_t>(bytes.size()) * 8);
  std::memcpy(end + size - 8, &bits, 8);
  for (size_t at = 0; at < size; at += 64) Mix(state, end + at);
  std::string digits;
  for (const uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[(word >> shift) & 15];
  }
  return digits;
}

[[noreturn]] void Differs(const fs::path& path, const std::string& how) {
  throw ArtifactError(path.string() + " " + how + ". Create the ensemble again.");
}

std::string DigestOf(const fs::path& path) {
  return fs::file_size(path) == 0 ? Sha256({}) : Sha256(MappedFile(path).bytes());
}

}  // namespace

void CheckStep(const std::string& model, const std::string& manifest) {
  const fs::path folder = fs::path(model).lexically_normal(), repository = folder.parent_path();
  const fs::path path = repository / manifest;
  const std::string own = folder.filename().string() + "/";
  Json files;
  try {
    const Json document = Json::Parse(ReadFile(path));
    if (document["format_version"].integer() != kFormatVersion) throw ArtifactError("it has another format version");
    files = document["files"];
    files.object();
  } catch (const ArtifactError& error) {
    throw ArtifactError(path.string() + " cannot be read (" + error.what() + "). Make the artifact again.");
  }
  for (const auto& [name, record] : files.object()) {
    if (name.compare(0, own.size(), own) != 0) continue;
    const fs::path file = repository / name;
    if (!fs::is_regular_file(fs::symlink_status(file))) Differs(file, "is missing from the ensemble");
    const auto expected = static_cast<uintmax_t>(record["num_bytes"].integer());
    if (const uintmax_t size = fs::file_size(file); size != expected) {
      Differs(file, "has " + std::to_string(size) + " bytes, expected " + std::to_string(expected));
    }
    if (DigestOf(file) != record["sha256"].string()) Differs(file, "does not match its checksum in the manifest");
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink()) continue;
    const std::string name = entry.path().lexically_relative(repository).generic_string();
    if (files.Get(name).is_null()) {
      throw ArtifactError(entry.path().string() + " is not in the manifest of the ensemble. Remove it.");
    }
  }
}

}  // namespace rankline
