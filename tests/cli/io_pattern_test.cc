// The reference pattern of `penstock io`, and how it measures time.
#include <gtest/gtest.h>

#include "cli/io/io_latency.hpp"
// The command is an executable, so this part of it is compiled in here once more.
#include "cli/io/io_pattern.cc"  // NOLINT(bugprone-suspicious-include)

namespace penstock::cli {
namespace {

using bytes = std::vector<std::byte>;

constexpr std::uint64_t longest = 64 << 10;

bytes pattern_at(std::uint64_t generation, std::uint64_t offset, std::uint64_t length) {
  const io_pattern pattern(generation, longest);
  const auto part = pattern.at(offset, length);
  return {part.begin(), part.end()};
}

// A checker over a file that holds this, whatever the offset.
struct checked_file {
  bytes content;
  pattern_checker checker;
  explicit checked_file(bytes held, std::optional<std::uint64_t> only = std::nullopt)
      : content(std::move(held)), checker(longest, only, [this](std::uint64_t offset, std::span<std::byte> target) {
          for (std::size_t i = 0; i < target.size(); ++i) target[i] = content[(offset + i) % content.size()];
          return status();
        }) {}
};

TEST(io_pattern, is_the_same_however_it_is_cut_and_begins_again_after_its_period) {
  const bytes whole = pattern_at(7, 0, longest);
  const bytes part = pattern_at(7, 12'345, 100);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 12'345));
  EXPECT_EQ(pattern_at(7, pattern_period * 3 + 5, 5000), pattern_at(7, 5, 5000));
  EXPECT_EQ(pattern_at(7, pattern_period - 100, 200), pattern_at(7, 2 * pattern_period - 100, 200));
  bytes single(96);
  make_pattern(single, 7, 8192 + 4000);
  EXPECT_EQ(single, pattern_at(7, 8192 + 4000, 96));
}

TEST(io_pattern, differs_between_writings_and_between_places) {
  EXPECT_NE(pattern_at(7, 0, 4096), pattern_at(8, 0, 4096));
  for (std::uint64_t moved = 4096; moved < (std::uint64_t{1} << 40); moved *= 2)
    EXPECT_NE(pattern_at(7, 0, 4096), pattern_at(7, moved, 4096));
}

TEST(pattern_checker, takes_what_is_right_and_tells_writings_by_their_marks) {
  bytes mixed = pattern_at(7, 4096, 8192);
  const bytes other = pattern_at(9, 8192, 4096);
  std::copy(other.begin(), other.end(), mixed.begin() + 4096);
  checked_file file(mixed);
  EXPECT_TRUE(file.checker.check(mixed, 4096).ok());
  EXPECT_EQ(file.checker.verified_bytes(), 8192U);
}

TEST(pattern_checker, what_memory_and_file_disagree_on_is_wrong_and_placed) {
  checked_file file(pattern_at(7, 0, 8192));
  bytes moved = pattern_at(7, 0, 8192);
  moved[5000] ^= std::byte{1};
  const status error = file.checker.check(moved, 0);
  EXPECT_EQ(error.code(), errc::internal);
  EXPECT_EQ(error.message(), "WRONG BYTES at 5000: the transferred bytes differ from those in the file");
  EXPECT_EQ(file.checker.verified_bytes(), 4096U);
}

TEST(pattern_checker, zeros_that_the_file_does_not_hold_are_wrong) {
  checked_file file(pattern_at(7, 0, 4096));
  EXPECT_EQ(file.checker.check(bytes(4096), 0).code(), errc::internal);
}

TEST(pattern_checker, zeros_of_the_file_were_never_written) {
  checked_file file(bytes(4096));
  EXPECT_TRUE(file.checker.check(bytes(4096), 0).ok());
  EXPECT_EQ(file.checker.unwritten_bytes(), 4096U);
  EXPECT_EQ(file.checker.verified_bytes(), 0U);
}

TEST(pattern_checker, what_should_have_been_written_now_is_no_other_writing_and_no_zeros) {
  checked_file old(pattern_at(7, 0, 4096), 8);
  EXPECT_EQ(old.checker.check(pattern_at(7, 0, 4096), 0).message(),
            "WRONG BYTES at 0: the file does not contain the bytes that were written");
  checked_file empty(bytes(4096), 8);
  EXPECT_EQ(empty.checker.check(bytes(4096), 0).code(), errc::internal);
}

TEST(pattern_checker, an_error_of_the_plain_read_is_the_answer) {
  pattern_checker checker(longest, std::nullopt, [](std::uint64_t, std::span<std::byte>) { return status(errc::io, "gone"); });
  EXPECT_EQ(checker.check(bytes(10), 0).message(), "gone");
}

TEST(latency_counts, percentiles_are_right_to_a_sixty_fourth) {
  latency_counts counts;
  EXPECT_EQ(counts.percentile_us(0.5), 0);
  EXPECT_EQ(counts.mean_us(), 0);
  for (int us = 1; us <= 1000; ++us) counts.add(std::chrono::microseconds(us));
  EXPECT_EQ(counts.total(), 1000U);
  EXPECT_NEAR(counts.mean_us(), 500.5, 1e-6);
  for (const auto& [part, right] : {std::pair(0.5, 501.0), std::pair(0.9, 901.0), std::pair(0.99, 991.0), std::pair(0.999, 1000.0)}) {
    EXPECT_GE(counts.percentile_us(part) * 1.0001, right);
    EXPECT_LE(counts.percentile_us(part), right * (1 + 1.0 / 64) + 0.001);
  }
}

TEST(latency_counts, take_any_time_and_add_up) {
  latency_counts one, other;
  one.add(std::chrono::nanoseconds(-5));
  one.add(std::chrono::nanoseconds(3), 2);
  other.add(std::chrono::hours(24 * 365));
  one.add(other);
  EXPECT_EQ(one.total(), 4U);
  EXPECT_NEAR(one.percentile_us(0.4), 0.003, 1e-9);
  EXPECT_NEAR(one.percentile_us(1) / 1e6, 24.0 * 365 * 3600, 24.0 * 365 * 3600 / 64);
}

}  // namespace
}  // namespace penstock::cli
