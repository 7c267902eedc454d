// Own code, since libcrypto is on no list of what Penstock needs, and what a wheel cannot bring along.
#include "cli/files/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace penstock::cli {
namespace {

constexpr std::size_t block_bytes = 64;

constexpr std::array<std::uint32_t, 64> round_constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const std::byte* from) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = (word << 8) | std::to_integer<std::uint32_t>(from[i]);
  return word;
}

void take_block_plainly(std::array<std::uint32_t, 8>& state, const std::byte* block) {
  std::array<std::uint32_t, 64> words{};
  for (std::size_t i = 0; i < 16; ++i) words[i] = big_endian(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t before = words[i - 15], latest = words[i - 2];
    const std::uint32_t s0 = std::rotr(before, 7) ^ std::rotr(before, 18) ^ (before >> 3);
    const std::uint32_t s1 = std::rotr(latest, 17) ^ std::rotr(latest, 19) ^ (latest >> 10);
    words[i] = words[i - 16] + s0 + words[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + round_constants[i] + words[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> add{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += add[i];
}

#if defined(__x86_64__)

bool processor_has_instructions() {
  static const bool answer = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (b & (1U << 29)) == 0) return false;      // SHA
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1U << 19)) != 0 && (c & (1U << 9)) != 0;  // SSE4.1, SSSE3
  }();
  return answer;
}

// The state is kept as the instructions take it: {a, b, e, f} and {c, d, g, h}, from the highest word down.
__attribute__((target("sha,sse4.1,ssse3"))) void take_blocks_by_instructions(std::array<std::uint32_t, 8>& state, const std::byte* block,
                                                                             std::size_t count) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  const __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data())), 0x1B);      // a b c d
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data() + 4)), 0x1B);  // e f g h
  __m128i abef = _mm_unpackhi_epi64(efgh, abcd);
  __m128i cdgh = _mm_unpacklo_epi64(efgh, abcd);
  for (; count > 0; --count, block += block_bytes) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];
    for (int group = 0; group < 16; ++group) {
      __m128i& now = words[group % 4];
      if (group < 4) {
        now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block) + group), swap);
      } else {
        const __m128i last = words[(group + 3) % 4], before = words[(group + 2) % 4], first = words[(group + 1) % 4];
        now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, first), _mm_alignr_epi8(last, before, 4)), last);
      }
      const __m128i constants = _mm_loadu_si128(reinterpret_cast<const __m128i*>(round_constants.data() + 4 * group));
      const __m128i sum = _mm_add_epi32(now, constants);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i high = _mm_unpackhi_epi64(cdgh, abef);  // c d a b, from the lowest word up: d c b a
  const __m128i low = _mm_unpacklo_epi64(cdgh, abef);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), _mm_shuffle_epi32(high, 0x1B));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), _mm_shuffle_epi32(low, 0x1B));
}

#else

bool processor_has_instructions() { return false; }
void take_blocks_by_instructions(std::array<std::uint32_t, 8>& /*state*/, const std::byte* /*block*/, std::size_t /*count*/) {}

#endif

}  // namespace

sha256::sha256(bool use_instructions)
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
      use_instructions_(use_instructions && processor_has_instructions()) {}

void sha256::take_blocks(const std::byte* blocks, std::size_t count) {
  if (use_instructions_) return take_blocks_by_instructions(state_, blocks, count);
  for (std::size_t i = 0; i < count; ++i) take_block_plainly(state_, blocks + i * block_bytes);
}

void sha256::update(std::span<const std::byte> bytes) {
  const std::size_t held = bytes_ % block_bytes;
  bytes_ += bytes.size();
  if (held > 0) {
    const std::size_t count = std::min(bytes.size(), block_bytes - held);
    std::copy_n(bytes.begin(), count, rest_.begin() + static_cast<std::ptrdiff_t>(held));
    bytes = bytes.subspan(count);
    if (held + count < block_bytes) return;
    take_blocks(rest_.data(), 1);
  }
  take_blocks(bytes.data(), bytes.size() / block_bytes);
  const auto rest = bytes.last(bytes.size() % block_bytes);
  std::copy(rest.begin(), rest.end(), rest_.begin());
}

std::array<std::uint8_t, 32> sha256::finish() {
  const std::uint64_t bits = bytes_ * 8;
  std::array<std::byte, 2 * block_bytes> end{std::byte{0x80}};
  const std::size_t held = bytes_ % block_bytes;
  const std::size_t padding = (held < 56 ? 56 : 120) - held;
  for (std::size_t i = 0; i < 8; ++i) end[padding + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(std::span(end).first(padding + 8));
  std::array<std::uint8_t, 32> out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

}  // namespace penstock::cli
