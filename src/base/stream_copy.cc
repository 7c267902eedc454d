#include "base/stream_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {

#if defined(__x86_64__)

namespace {

constexpr std::size_t line = 64;

// Whole lines, to an aligned target.
using line_copy = void (*)(std::byte* target, const std::byte* source, std::size_t bytes);

__attribute__((target("avx512f"))) void copy_avx512(std::byte* target, const std::byte* source, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += line) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at), _mm512_loadu_si512(source + at));
  }
}

__attribute__((target("avx2"))) void copy_avx2(std::byte* target, const std::byte* source, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += line) {
    const auto low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
    const auto high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + 32), high);
  }
}

void copy_sse2(std::byte* target, const std::byte* source, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + at), _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at)));
  }
}

line_copy choose() noexcept {
  if (__builtin_cpu_supports("avx512f")) return &copy_avx512;
  if (__builtin_cpu_supports("avx2")) return &copy_avx2;
  return &copy_sse2;
}

}  // namespace

void stream_copy(std::byte* target, const std::byte* source, std::size_t bytes) noexcept {
  static const line_copy copy_lines = choose();
  const std::size_t head = std::min(bytes, (line - reinterpret_cast<std::uintptr_t>(target) % line) % line);
  std::memcpy(target, source, head);
  const std::size_t body = (bytes - head) / line * line;
  copy_lines(target + head, source + head, body);
  std::memcpy(target + head + body, source + head + body, bytes - head - body);
  _mm_sfence();  // before anybody is told that the bytes are there
}

#else

void stream_copy(std::byte* target, const std::byte* source, std::size_t bytes) noexcept { std::memcpy(target, source, bytes); }

#endif

}  // namespace penstock
