#include "cli/io/io_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "bench/sample_data.hpp"

namespace penstock::cli {
namespace {

constexpr std::array<char, 8> mark{'P', 'E', 'N', 'S', 'T', 'O', 'C', 'K'};
constexpr std::size_t most_patterns = 8;  // kept at the same time; each takes 4 MiB plus the longest range

void make_block(std::span<std::byte> block, std::uint64_t generation, std::uint64_t index) {
  // Derives seeds that are far apart for consecutive blocks and generations.
  bench::random_bytes seeds(generation);
  bench::random_bytes source(seeds.next() + index * 0x9e3779b97f4a7c15ULL);
  source.fill(block);
  std::memcpy(block.data(), mark.data(), mark.size());
  std::memcpy(block.data() + mark.size(), &generation, sizeof generation);
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte each) { return each == std::byte{0}; });
}

}  // namespace

io_pattern::io_pattern(std::uint64_t generation, std::uint64_t longest) : generation_(generation), bytes_(pattern_period + longest) {
  const std::span<std::byte> all(bytes_);
  for (std::uint64_t index = 0; index < pattern_period / pattern_block; ++index)
    make_block(all.subspan(index * pattern_block, pattern_block), generation, index);
  for (std::uint64_t done = pattern_period; done < bytes_.size();) {
    const std::uint64_t count = std::min<std::uint64_t>(pattern_period, bytes_.size() - done);
    std::memcpy(bytes_.data() + done, bytes_.data(), count);
    done += count;
  }
}

std::span<const std::byte> io_pattern::at(std::uint64_t offset, std::uint64_t length) const {
  return std::span(bytes_).subspan(offset % pattern_period, length);
}

std::optional<std::uint64_t> generation_of(std::span<const std::byte> block) {
  std::uint64_t generation = 0;
  if (block.size() < mark.size() + sizeof generation || std::memcmp(block.data(), mark.data(), mark.size()) != 0) return std::nullopt;
  std::memcpy(&generation, block.data() + mark.size(), sizeof generation);
  return generation;
}

void make_pattern(std::span<std::byte> target, std::uint64_t generation, std::uint64_t offset) {
  std::array<std::byte, pattern_block> block{};
  make_block(block, generation, offset % pattern_period / pattern_block);
  std::memcpy(target.data(), block.data() + offset % pattern_block, target.size());
}

bool is_pattern_or_zero(std::span<const std::byte> bytes, std::uint64_t generation, std::uint64_t offset) {
  std::vector<std::byte> expected(bytes.size());
  make_pattern(expected, generation, offset);
  return std::equal(bytes.begin(), bytes.end(), expected.begin(),
                    [](std::byte found, std::byte right) { return found == right || found == std::byte{0}; });
}

const io_pattern& pattern_checker::of(std::uint64_t generation) {
  if (const auto found = known_.find(generation); found != known_.end()) return found->second;
  if (known_.size() >= most_patterns) known_.erase(known_.begin());
  return known_.emplace(generation, io_pattern(generation, longest_)).first->second;
}

// Uses the mark of the first whole block that has one, otherwise the generation of the previous range.
bool pattern_checker::holds(std::span<const std::byte> bytes, std::uint64_t offset) {
  const std::uint64_t to_block = (pattern_block - offset % pattern_block) % pattern_block;
  std::optional<std::uint64_t> generation = only_;
  if (!generation && to_block < bytes.size()) generation = generation_of(bytes.subspan(to_block));
  if (!generation) generation = latest_;
  if (!generation) return false;
  const auto expected = of(*generation).at(offset, bytes.size());
  if (std::memcmp(expected.data(), bytes.data(), bytes.size()) != 0) return false;
  latest_ = generation;
  return true;
}

status pattern_checker::judge(std::span<const std::byte> bytes, std::uint64_t offset) {
  std::vector<std::byte> file(bytes.size());
  if (status error = plainly_(offset, file); !error.ok()) return error;
  const auto differs = std::mismatch(bytes.begin(), bytes.end(), file.begin()).first;
  if (differs != bytes.end()) {
    const auto at = offset + static_cast<std::uint64_t>(differs - bytes.begin());
    return {errc::internal, fmt::format("WRONG BYTES at {}: the transferred bytes differ from those in the file", at)};
  }
  if (only_) return {errc::internal, fmt::format("WRONG BYTES at {}: the file does not contain the bytes that were written", offset)};
  if (!all_zero(bytes) && !partly_written(bytes, offset))
    return {errc::io, fmt::format("at offset {}, the file no longer contains what penstock io wrote", offset)};
  unwritten_ += bytes.size();
  return {};
}

bool pattern_checker::partly_written(std::span<const std::byte> bytes, std::uint64_t offset) const {
  const auto own = offset % pattern_block == 0 ? generation_of(bytes) : std::nullopt;
  const auto generation = own ? own : latest_;
  return generation && is_pattern_or_zero(bytes, *generation, offset);
}

status pattern_checker::check(std::span<const std::byte> bytes, std::uint64_t offset) {
  if (holds(bytes, offset)) {
    verified_ += bytes.size();
    return {};
  }
  while (!bytes.empty()) {
    const std::uint64_t count = std::min<std::uint64_t>(bytes.size(), pattern_block - offset % pattern_block);
    const auto piece = bytes.first(count);
    if (holds(piece, offset)) {
      verified_ += count;
    } else if (status error = judge(piece, offset); !error.ok()) {
      return error;
    }
    bytes = bytes.subspan(count);
    offset += count;
  }
  return {};
}

}  // namespace penstock::cli
