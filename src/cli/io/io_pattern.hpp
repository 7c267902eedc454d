// The bytes that `penstock io` writes: a function of the offset in the file, so that any read of them can be checked. Every block of 4 KiB
// begins with a mark and with the number of the writing that made it, its *generation*; so a file tells whether it was made here.
// Thread rule: const calls from any thread; a checker is for one.
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
// After that many bytes it begins again, so that it can lie ready in memory of a device. A prime number of blocks: what lies where
// something else should, moved by any power of two, shows.
inline constexpr std::uint64_t pattern_period = 1021 * pattern_block;

// All of one generation.
class io_pattern {
 public:
  // longest: of the ranges that at() is asked for.
  io_pattern(std::uint64_t generation, std::uint64_t longest);
  // The bytes from this offset of a file on.
  [[nodiscard]] std::span<const std::byte> at(std::uint64_t offset, std::uint64_t length) const;
  // All of it: the bytes of offset o begin at o % pattern_period.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t generation() const { return generation_; }

 private:
  std::uint64_t generation_;
  std::vector<std::byte> bytes_;
};

// The part of one block from this offset of a file on, which lies in it.
void make_pattern(std::span<std::byte> target, std::uint64_t generation, std::uint64_t offset);
// Whether each of these bytes, which lie in one block, is that of the pattern or, as where nothing was written, zero.
bool is_pattern_or_zero(std::span<const std::byte> bytes, std::uint64_t generation, std::uint64_t offset);

// The generation that the mark of a block names; none where it has no mark.
std::optional<std::uint64_t> generation_of(std::span<const std::byte> block);

// Compares what was read or written with the pattern.
class pattern_checker {
 public:
  // Reads the same range of the file plainly, to judge what is not the pattern.
  using plain_reader = std::function<status(std::uint64_t offset, std::span<std::byte> target)>;

  // longest: of the ranges to check. only: what every block must be of; none where the mark of each tells.
  pattern_checker(std::uint64_t longest, std::optional<std::uint64_t> only, plain_reader plainly)
      : longest_(longest), only_(only), plainly_(std::move(plainly)) {}

  // What follows is of another file, whose newest writing may be known.
  void begin_file(std::optional<std::uint64_t> generation) { latest_ = generation; }
  // bytes: what is said to be in the file at this offset. Errors: internal where the file holds something else or, with `only`, something
  // that was not written now; io where it holds no pattern; those of plainly.
  status check(std::span<const std::byte> bytes, std::uint64_t offset);
  [[nodiscard]] std::uint64_t verified_bytes() const { return verified_; }
  // That nothing was written to yet: zeros, in the file too.
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
  std::optional<std::uint64_t> latest_;  // of a block whose mark is not in the range
  std::uint64_t verified_ = 0;
  std::uint64_t unwritten_ = 0;
};

}  // namespace penstock::cli
