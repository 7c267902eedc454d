#include "support/pattern.hpp"

#include <algorithm>
#include <cstring>

namespace penstock::testing::pattern {

std::uint64_t word_at(std::uint64_t seed, std::uint64_t index) noexcept {
  // splitmix64: neighbouring indexes and seeds share bytes only by chance.
  const auto mix = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  };
  return mix(mix(seed + 0x9e3779b97f4a7c15ULL) + index * 0x9e3779b97f4a7c15ULL);
}

std::byte byte_at(std::uint64_t seed, std::uint64_t offset) noexcept {
  return static_cast<std::byte>(word_at(seed, offset / 8) >> (offset % 8 * 8));
}

void fill(std::span<std::byte> target, std::uint64_t seed, std::uint64_t offset) noexcept {
  std::size_t i = 0;
  for (; i < target.size() && (offset + i) % 8 != 0; ++i) target[i] = byte_at(seed, offset + i);
  for (; i + 8 <= target.size(); i += 8) {
    const std::uint64_t word = word_at(seed, (offset + i) / 8);
    std::memcpy(&target[i], &word, 8);
  }
  for (; i < target.size(); ++i) target[i] = byte_at(seed, offset + i);
}

std::vector<std::byte> make(std::size_t length, std::uint64_t seed, std::uint64_t offset) {
  std::vector<std::byte> bytes(length);
  fill(bytes, seed, offset);
  return bytes;
}

std::optional<std::uint64_t> first_difference(std::span<const std::byte> bytes, std::uint64_t seed, std::uint64_t offset) noexcept {
  std::byte expected[4096];
  for (std::size_t done = 0; done < bytes.size();) {
    const std::size_t part = std::min(bytes.size() - done, sizeof expected);
    fill({expected, part}, seed, offset + done);
    if (std::memcmp(&bytes[done], expected, part) != 0) {
      const auto* at = std::mismatch(expected, expected + part, &bytes[done]).first;
      return offset + done + static_cast<std::uint64_t>(at - expected);
    }
    done += part;
  }
  return std::nullopt;
}

}  // namespace penstock::testing::pattern
