#include "plan/kernels/kernels.h"

namespace rankline {
namespace {

constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
constexpr size_t kLongBytes = 128;

uint64_t RotatedRight(uint64_t word, int bits) { return (word >> bits) | (word << (64 - bits)); }

// BLAKE2b (RFC 7693) with an 8-byte digest and no key; the first two bytes of the salt are the seed.
uint64_t Blake2b(std::string_view text, uint64_t seed) {
  constexpr uint64_t kStart[8] = {0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
                                  0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179};
  constexpr uint8_t kOrder[10][16] = {
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
      {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
      {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
      {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
      {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};
  uint64_t state[8];
  std::memcpy(state, kStart, sizeof(state));
  state[0] ^= 0x01010000 ^ 8;  // fan-out and depth 1, 8 bytes
  state[4] ^= seed & 0xFFFF;
  for (size_t begin = 0; begin < text.size(); begin += 128) {
    const size_t taken = text.size() - begin < 128 ? text.size() - begin : 128;
    uint64_t message[16] = {}, work[16];
    std::memcpy(message, text.data() + begin, taken);
    std::memcpy(work, state, sizeof(state));
    std::memcpy(work + 8, kStart, sizeof(kStart));
    work[12] ^= begin + taken;
    if (begin + taken == text.size()) work[14] = ~work[14];
    for (int round = 0; round < 12; ++round) {
      const uint8_t* order = kOrder[round % 10];
      const auto mix = [&](int a, int b, int c, int d, int i) {
        work[a] += work[b] + message[order[i]];
        work[d] = RotatedRight(work[d] ^ work[a], 32);
        work[c] += work[d];
        work[b] = RotatedRight(work[b] ^ work[c], 24);
        work[a] += work[b] + message[order[i + 1]];
        work[d] = RotatedRight(work[d] ^ work[a], 16);
        work[c] += work[d];
        work[b] = RotatedRight(work[b] ^ work[c], 63);
      };
      for (int i = 0; i < 4; ++i) mix(i, 4 + i, 8 + i, 12 + i, 2 * i);
      for (int i = 0; i < 4; ++i) mix(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, 8 + 2 * i);
    }
    for (int i = 0; i < 8; ++i) state[i] ^= work[i] ^ work[i + 8];
  }
  return state[0];
}

}  // namespace

uint64_t HashString(std::string_view string, uint64_t seed) {
  if (string.size() > kLongBytes) return Blake2b(string, seed);
  uint64_t hash = HashId(string.size() + (seed << 48));
  for (size_t begin = 0; begin < string.size(); begin += 8) {
    uint64_t word = 0;
    std::memcpy(&word, string.data() + begin, string.size() - begin < 8 ? string.size() - begin : 8);
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 32;
  }
  return HashId(hash);
}

}  // namespace rankline
