// Detecting a file system that responds slowly.
#include "staging/answer_times.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

namespace penstock::staging::answer_times_tests {
namespace {

using verdict = answer_times::verdict;

constexpr std::int64_t ms = 1'000'000;

// A file system that takes so long for a read, and serves so many at a time; read by somebody who always wants more.
class served {
 public:
  served(answer_times& by, std::int64_t read_ns, std::size_t at_once) : by_(by), read_ns_(read_ns), at_once_(at_once) {}

  void read(int count) {
    for (int begun = 0; begun < count || !under_way_.empty();) {
      while (begun < count && by_.under_way() < by_.at_once()) {
        begin();
        ++begun;
      }
      if (begun < count) by_.held_back();
      end_next();
      most_ = std::max<std::size_t>(most_, under_way_.size());
    }
  }
  void wait(std::int64_t time_ns) { now_ += time_ns; }
  void take(std::int64_t read_ns) { read_ns_ = read_ns; }
  [[nodiscard]] std::size_t most() const { return most_; }

 private:
  struct one {
    answer_times::reading of;
    std::int64_t due_ns;
  };
  void begin() {
    // Of so many at a time, it begins when the one that many before it ends.
    const auto begins = under_way_.size() < at_once_ ? now_ : std::max(now_, under_way_[under_way_.size() - at_once_].due_ns);
    under_way_.push_back({by_.begins(now_), begins + read_ns_});
  }
  void end_next() {
    const auto next = under_way_.front();
    under_way_.pop_front();
    now_ = std::max(now_, next.due_ns);
    by_.ended(next.of, now_, true);
  }

  answer_times& by_;
  std::int64_t read_ns_;
  std::size_t at_once_;
  std::int64_t now_ = 7'000 * ms;
  std::deque<one> under_way_;
  std::size_t most_ = 0;
};

TEST(answer_times, nothing_is_known_before_a_read_has_ended) {
  answer_times times;
  EXPECT_EQ(times.advise(), verdict::unknown);
  const auto first = times.begins(0);
  EXPECT_EQ(times.advise(), verdict::unknown);
  times.ended(first, 10 * ms, true);
  EXPECT_EQ(times.advise(), verdict::late);
  EXPECT_EQ(times.read_ns(), 10 * ms);
}

TEST(answer_times, a_read_that_brought_nothing_tells_nothing) {
  answer_times times;
  times.ended(times.begins(0), 10 * ms, false);
  EXPECT_EQ(times.advise(), verdict::unknown);
  EXPECT_EQ(times.under_way(), 0U);
}

// They wait for each other: all but the first take longer than a read does.
TEST(answer_times, a_prompt_file_system_is_not_taken_for_late_since_many_reads_wait_for_each_other) {
  answer_times times;
  served fast(times, ms / 10, 1);
  fast.read(5000);
  EXPECT_EQ(times.advise(), verdict::prompt);
  EXPECT_EQ(times.read_ns(), ms / 10);
}

TEST(answer_times, a_slow_read_among_quick_ones_changes_nothing) {
  answer_times times;
  served fast(times, ms / 10, 8);
  fast.read(1);
  fast.take(50 * ms);
  fast.read(1);
  EXPECT_EQ(times.advise(), verdict::prompt);
}

// Between the two limits what was found stays.
TEST(answer_times, what_was_late_stays_so_until_reads_take_half_as_long) {
  answer_times times;
  served by(times, answer_times::late_ns, 8);
  by.read(1);
  EXPECT_EQ(times.advise(), verdict::late);
  by.take(answer_times::late_ns * 6 / 10);
  by.read(1);
  EXPECT_EQ(times.advise(), verdict::late);
  by.take(answer_times::late_ns * 4 / 10);
  by.read(1);
  EXPECT_EQ(times.advise(), verdict::prompt);
  by.take(answer_times::late_ns * 9 / 10);
  for (int i = 0; i < 20; ++i) by.read(1);
  EXPECT_EQ(times.advise(), verdict::prompt);
  by.take(3 * answer_times::late_ns);
  for (int i = 0; i < 20; ++i) by.read(1);
  EXPECT_EQ(times.advise(), verdict::late);
}

TEST(answer_times, the_depth_grows_as_long_as_more_is_given) {
  answer_times times;
  served any_number(times, 10 * ms, 100'000);
  any_number.read(20'000);
  EXPECT_EQ(times.at_once(), answer_times::most_at_once);
  EXPECT_LE(any_number.most(), answer_times::most_at_once);
}

TEST(answer_times, the_depth_is_about_what_the_file_system_serves_at_once) {
  for (const std::size_t at_once : {1, 4, 12, 40, 100}) {
    answer_times times;
    served by(times, 10 * ms, at_once);
    by.read(5000);
    EXPECT_GE(times.at_once(), at_once) << "it has nothing to do now and then";
    EXPECT_LE(times.at_once(), 2 * at_once + 2) << "more only wait there";
  }
}

// In the first windows, threads start and slabs are allocated.
TEST(answer_times, the_first_windows_do_not_reduce_the_depth) {
  answer_times times;
  served by(times, 10 * ms, 8);
  by.read(40);
  EXPECT_EQ(times.at_once(), answer_times::first_at_once);
  by.read(1000);
  EXPECT_LE(times.at_once(), 18U);
}

TEST(answer_times, the_depth_follows_a_file_system_that_serves_fewer_and_then_more) {
  answer_times times;
  served(times, 5 * ms, 100).read(5000);
  EXPECT_GE(times.at_once(), 100U);
  served(times, 5 * ms, 4).read(2000);
  EXPECT_LE(times.at_once(), 12U);
  served(times, 5 * ms, 100).read(5000);
  EXPECT_GE(times.at_once(), 100U);
}

// Else a reader of one piece after the other would leave a depth of one behind.
TEST(answer_times, who_wants_little_leaves_the_depth_as_it_was) {
  answer_times times;
  for (int i = 0; i < 200; ++i) times.ended(times.begins(i * 30 * ms), (i * 30 + 10) * ms, true);
  EXPECT_EQ(times.at_once(), answer_times::first_at_once);
}

// Through the page cache the kernel asks for a part after the other.
TEST(answer_times, a_long_read_is_not_late_for_its_length) {
  answer_times times;
  auto read = times.begins(0);
  times.answered(read, ms / 2);
  times.ended(read, 8 * ms, true);
  EXPECT_EQ(times.advise(), verdict::prompt);
  EXPECT_EQ(times.read_ns(), ms / 2);
  EXPECT_EQ(times.under_way(), 0U);
}

TEST(answer_times, the_first_part_of_a_read_beside_others_tells_nothing) {
  answer_times times;
  auto first = times.begins(0);
  auto second = times.begins(0);
  times.answered(second, 5 * ms);
  EXPECT_EQ(times.advise(), verdict::unknown);
  times.answered(first, 6 * ms);
  EXPECT_EQ(times.read_ns(), 6 * ms);
}

TEST(answer_times, a_piece_is_no_shorter_than_what_the_file_system_asks_for) {
  answer_times times;
  EXPECT_EQ(times.piece_bytes(), std::uint64_t{1} << 20);
  times.set_most_read(std::uint64_t{128} << 10);
  EXPECT_EQ(times.piece_bytes(), std::uint64_t{1} << 20);
  times.set_most_read(std::uint64_t{3} << 20);
  EXPECT_EQ(times.piece_bytes(), std::uint64_t{4} << 20);
  times.set_most_read(std::uint64_t{64} << 20);
  EXPECT_EQ(times.piece_bytes(), std::uint64_t{4} << 20);
}

}  // namespace
}  // namespace penstock::staging::answer_times_tests
