// The bytes that `penstock io` writes. They are a function of the offset in the file, so that any read can be verified. Every 4 KiB block
// begins with a mark and the number of the run that wrote it, its *generation*. The mark also shows that penstock io created the file.
// Const member functions may be called from any thread; use a checker from one thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::cli {

inline constexpr std::uint64_t pattern_block = 4096;
// The pattern repeats after this many bytes, so that device memory can hold all of it. The period is a prime number of blocks, so data
// displaced by any power of two is detected.
inline constexpr std::uint64_t pattern_period = 1021 * pattern_block;

// The whole pattern of one generation.
class io_pattern {
 public:
  // longest: the longest range that at() will be called with.
  io_pattern(std::uint64_t generation, std::uint64_t longest);
  // Returns the bytes of a range of the file.
  [[nodiscard]] std::span<const std::byte> at(std::uint64_t offset, std::uint64_t length) const;
  // Returns the whole pattern; the bytes for file offset o begin at o % pattern_period.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t generation() const { return generation_; }

 private:
  std::uint64_t generation_;
  std::vector<std::byte> bytes_;
};

// Fills the target with the pattern, starting at this file offset. The range must lie within one block.
void make_pattern(std::span<std::byte> target, std::uint64_t generation, std::uint64_t offset);
// Returns true if each byte of this range of one block matches the pattern or, if it was never written, is zero.
bool is_pattern_or_zero(std::span<const std::byte> bytes, std::uint64_t generation, std::uint64_t offset);

// Returns the generation in the mark of a block; nullopt if there is no mark.
std::optional<std::uint64_t> generation_of(std::span<const std::byte> block);

// Compares the data that was read or written with the pattern.
class pattern_checker {
 public:
  // Reads the same range of the file without the engine, to judge bytes that do not match the pattern.
  using plain_reader = std::function<status(std::uint64_t offset, std::span<std::byte> target)>;

  // longest: the longest range to check. only: the generation that every block must have; nullopt: each block's mark decides.
  pattern_checker(std::uint64_t longest, std::optional<std::uint64_t> only, plain_reader plainly)
      : longest_(longest), only_(only), plainly_(std::move(plainly)) {}

  // Starts checking another file. generation: its newest one, if known.
  void begin_file(std::optional<std::uint64_t> generation) { latest_ = generation; }
  // bytes: the data to check, which should equal the file at this offset. Errors: internal if the file contains something else or, with
  // `only`, something that this run did not write; io if the file does not contain the pattern; those of plainly.
  status check(std::span<const std::byte> bytes, std::uint64_t offset);
  [[nodiscard]] std::uint64_t verified_bytes() const { return verified_; }
  // Returns the number of bytes that were never written: zero both here and in the file.
  [[nodiscard]] std::uint64_t unwritten_bytes() const { return unwritten_; }

 private:
  const io_pattern& of(std::uint64_t generation);
  [[nodiscard]] bool holds(std::span<const std::byte> bytes, std::uint64_t offset);
  status judge(std::span<const std::byte> bytes, std::uint64_t offset);
  [[nodiscard]] bool partly_written(std::span<const std::byte> bytes, std::uint64_t offset) const;

  std::uint64_t longest_;
  std::optional<std::uint64_t> only_;
  plain_reader plainly_;
  std::map<std::uint64_t, io_pattern> known_;
  std::optional<std::uint64_t> latest_;  // for a block whose mark is outside the range
  std::uint64_t verified_ = 0;
  std::uint64_t unwritten_ = 0;
};

}  // namespace penstock::cli
