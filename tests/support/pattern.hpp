// Test bytes that can be checked anywhere: byte i of a file depends only on the seed and on i. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock::testing::pattern {

// Returns the eight bytes at offset 8 * index (little-endian).
std::uint64_t word_at(std::uint64_t seed, std::uint64_t index) noexcept;

std::byte byte_at(std::uint64_t seed, std::uint64_t offset) noexcept;

// Writes the bytes of [offset, offset + target.size()) into target.
void fill(std::span<std::byte> target, std::uint64_t seed, std::uint64_t offset) noexcept;

std::vector<std::byte> make(std::size_t length, std::uint64_t seed, std::uint64_t offset = 0);

// Returns the first file offset in [offset, offset + bytes.size()) at which bytes differ from the pattern, or nothing.
std::optional<std::uint64_t> first_difference(std::span<const std::byte> bytes, std::uint64_t seed, std::uint64_t offset) noexcept;

}  // namespace penstock::testing::pattern
