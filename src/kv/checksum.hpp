// The checksum of values and of records of the index: CRC-32C, by the processor's instruction where it has one. Values are longer than one
// such instruction after the other is quick for, so theirs is of four lanes: the 8-byte words 0, 4, 8 and so on, those after them, ...
// Pure functions and plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::kv {

// CRC-32C of bytes that follow those of `before`; 0: of none.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;
// The same without the instruction, for tests.
[[nodiscard]] std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

// Of bytes that come in pieces; how they are cut changes nothing.
class checksum {
 public:
  void add(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] std::uint64_t value() const noexcept;

 private:
  static constexpr std::size_t lane_count = 4;
  static constexpr std::size_t row_bytes = lane_count * 8;

  std::array<std::uint32_t, lane_count> lanes_{~0U, ~0U, ~0U, ~0U};
  std::array<std::byte, row_bytes> rest_{};  // bytes of a row that has more to come
  std::uint64_t length_ = 0;
};

}  // namespace penstock::kv
