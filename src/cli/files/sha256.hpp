// SHA-256 (FIPS 180-4). One thread per object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::cli {

class sha256 {
 public:
  // use_instructions: where the processor has some for it; about four times as fast.
  explicit sha256(bool use_instructions = true);
  void update(std::span<const std::byte> bytes);
  // Pads what was given; nothing may follow.
  std::array<std::uint8_t, 32> finish();

 private:
  void take_blocks(const std::byte* blocks, std::size_t count);
  std::array<std::uint32_t, 8> state_;
  std::array<std::byte, 64> rest_{};
  std::uint64_t bytes_ = 0;
  bool use_instructions_;
};

}  // namespace penstock::cli
