#include "base/stream_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {

namespace {

[[maybe_unused]] constexpr std::size_t line = 64;

#if defined(__x86_64__)

// Copies whole lines to an aligned target.
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

void copy_lines(std::byte* target, const std::byte* source, std::size_t bytes) {
  static const line_copy chosen = choose();
  chosen(target, source, bytes);
}

// Call this before notifying any other thread or device of the bytes.
void end_streaming() { _mm_sfence(); }

#elif defined(__aarch64__)

// Copies pairs of registers with a hint that this CPU will not need the line. Compilers do not generate stnp, and g++ has no intrinsic for
// it.
void copy_lines(std::byte* target, const std::byte* source, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += line) {
    asm volatile(
        "ldp q16, q17, [%[source]]\n\t"
        "ldp q18, q19, [%[source], #32]\n\t"
        "stnp q16, q17, [%[target]]\n\t"
        "stnp q18, q19, [%[target], #32]"
        :
        : [target] "r"(target + at), [source] "r"(source + at)
        : "v16", "v17", "v18", "v19", "memory");
  }
}

// All stores are weakly ordered on aarch64. The barrier covers the outer shareable domain, which includes devices.
void end_streaming() { asm volatile("dmb oshst" ::: "memory"); }

#endif

}  // namespace

#if defined(__x86_64__) || defined(__aarch64__)

void stream_copy(std::byte* target, const std::byte* source, std::size_t bytes) noexcept {
  const std::size_t head = std::min(bytes, (line - reinterpret_cast<std::uintptr_t>(target) % line) % line);
  std::memcpy(target, source, head);
  const std::size_t body = (bytes - head) / line * line;
  copy_lines(target + head, source + head, body);
  std::memcpy(target + head + body, source + head + body, bytes - head - body);
  end_streaming();
}

#else

void stream_copy(std::byte* target, const std::byte* source, std::size_t bytes) noexcept { std::memcpy(target, source, bytes); }

#endif

}  // namespace penstock
