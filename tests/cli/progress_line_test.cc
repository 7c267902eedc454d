#include <gtest/gtest.h>

// The command is an executable, so this part of it is compiled here again; sizes_test.cc has the other part that it needs.
#include "cli/common/progress_line.cc"  // NOLINT(bugprone-suspicious-include)

namespace penstock::cli {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

progress_facts halfway() { return {"reading", "/data/models/model.bin", gib / 2, gib, 0, 2.0}; }

TEST(progress_line, tells_phase_name_part_speed_and_the_time_that_is_left) {
  EXPECT_EQ(progress_line(halfway(), 100),
            "reading /data/models/model.bin [###############................]  50% of 1 GiB  0.27 GB/s  0:02 left");
}

TEST(progress_line, never_takes_more_columns_than_there_are) {
  for (std::size_t columns = 1; columns < 200; ++columns) EXPECT_LE(progress_line(halfway(), columns).size(), columns);
}

TEST(progress_line, cuts_the_name_first_and_then_leaves_out_the_bar) {
  EXPECT_EQ(progress_line(halfway(), 72), "reading ...dels/model.bin [####....]  50% of 1 GiB  0.27 GB/s  0:02 left");
  EXPECT_EQ(progress_line(halfway(), 60), "reading ...els/model.bin  50% of 1 GiB  0.27 GB/s  0:02 left");
  EXPECT_EQ(progress_line(halfway(), 50), "reading  50% of 1 GiB  0.27 GB/s  0:02 left");
  EXPECT_EQ(progress_line(halfway(), 10), "reading  5");
}

TEST(progress_line, promises_no_time_before_there_is_something_to_judge_by) {
  auto facts = halfway();
  facts.seconds = 0.1;
  EXPECT_EQ(progress_line(facts, 60), "reading /data/models/model.bin [######.......]  50% of 1 GiB");
  facts = halfway();
  facts.first_byte = facts.done_bytes;
  EXPECT_EQ(progress_line(facts, 60), "reading /data/models/model.bin [######.......]  50% of 1 GiB");
}

TEST(progress_line, judges_by_what_was_done_since_the_clock_was_started) {
  const progress_facts facts{"hashing", "x", 3 * gib, 4 * gib, 2 * gib, 4000.0};
  EXPECT_NE(progress_line(facts, 100).find("1:06:40 left"), std::string::npos) << progress_line(facts, 100);
}

TEST(progress_line, more_bytes_than_there_should_be_are_all_of_them) {
  auto facts = halfway();
  facts.done_bytes = 2 * gib;
  EXPECT_NE(progress_line(facts, 100).find("100% of 1 GiB"), std::string::npos);
  EXPECT_NE(progress_line(facts, 100).find("0:00 left"), std::string::npos);
}

}  // namespace
}  // namespace penstock::cli
