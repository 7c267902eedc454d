// The screen of penstock top, for given lists of processes of any length.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cli/watch/observed.cc"  // NOLINT(bugprone-suspicious-include)
#include "cli/watch/top_view.cc"  // NOLINT(bugprone-suspicious-include)

namespace penstock::cli {
namespace {

std::vector<process_speed> many(int count) {
  std::vector<process_speed> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    auto& now = all[static_cast<std::size_t>(i)].now;
    now.pid = 1000 + i;
    now.program = "program";
    now.requests = std::vector<request_info>{{"/data/of-" + std::to_string(now.pid), 0, 4096, false, "host", 0}};
  }
  return all;
}

bool any_has(const std::vector<std::string>& lines, const std::string& text) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

TEST(top_view, several_processes_of_other_versions_are_one_line) {
  const std::vector<status> problems{{errc::unsupported, "process 7 runs Penstock 9"},
                                     {errc::permission_denied, "a folder is open to others"},
                                     {errc::unsupported, "process 8 runs Penstock 9"},
                                     {errc::unsupported, "process 9 runs Penstock 8"}};
  const auto lines = top_lines({}, problems, {});
  EXPECT_TRUE(any_has(lines, "3 processes run other versions of Penstock: `penstock stats` lists them")) << lines.back();
  EXPECT_TRUE(any_has(lines, "open to others"));
  EXPECT_FALSE(any_has(lines, "process 8"));
  EXPECT_TRUE(any_has(top_lines({}, {problems[0]}, {}), "process 7 runs Penstock 9"));
}

TEST(top_view, of_hundreds_the_selected_one_is_on_the_screen_with_what_is_said_of_it) {
  const auto all = many(300);
  for (const int pid : {1000, 1001, 1150, 1299}) {
    for (const std::size_t rows : {std::size_t{8}, std::size_t{24}, std::size_t{100}}) {
      const auto lines = top_lines(all, {}, {.columns = 80, .rows = rows, .selected_pid = pid, .shows_requests = true});
      EXPECT_LE(lines.size(), rows);
      EXPECT_TRUE(any_has(lines, ">     " + std::to_string(pid))) << rows;
      EXPECT_TRUE(any_has(lines, "process " + std::to_string(pid) + ":")) << rows;
      EXPECT_TRUE(any_has(lines, "/data/of-" + std::to_string(pid))) << rows;
    }
  }
}

TEST(top_view, those_that_have_ended_come_last_in_one_line_until_they_are_asked_for) {
  auto all = many(5);
  for (auto& each : all) each.now.ended = each.now.pid < 1003;
  all[4].read_gigabytes_per_second = 2;
  sort_by(all, top_order::pid);
  EXPECT_EQ(all.front().now.pid, 1003);
  EXPECT_EQ(all.back().now.pid, 1002);
  sort_by(all, top_order::speed);
  EXPECT_EQ(all.front().now.pid, 1004) << "the busiest";
  EXPECT_EQ(selected_of(all, {}), 1004);
  const auto few = top_lines(all, {}, {.columns = 119});
  EXPECT_TRUE(any_has(few, "  3 exited without closing; d shows them"));
  EXPECT_TRUE(any_has(few, "penstock top: 2 processes, by speed"));
  EXPECT_FALSE(any_has(few, " 1000 "));
  const auto listed = top_lines(all, {}, {.columns = 119, .shows_ended = true});
  EXPECT_TRUE(any_has(listed, "1000 program           0.00    0.00 ")) << listed.back();
  EXPECT_TRUE(any_has(listed, " exited"));
  const auto table = top_table(all, false);
  EXPECT_EQ(table.size(), 4U);
  EXPECT_EQ(table.back(), "3 processes exited without closing (1000, 1001, 1002); `penstock stats -p PID` shows the last figures of one");
}

TEST(top_view, the_selection_leaves_a_process_that_has_ended) {
  auto all = many(3);
  const top_screen chosen{.selected_pid = 1002, .is_chosen = true};
  EXPECT_EQ(selected_of(all, chosen), 1002);
  EXPECT_EQ(selected_of(all, {.selected_pid = 1002}), 1000) << "nobody has chosen it: the first is the busiest";
  all[2].now.ended = true;
  EXPECT_EQ(selected_of(all, chosen), 1000);
  EXPECT_EQ(selected_of({}, chosen), 0);
}

TEST(top_view, columns_without_room_are_dropped_with_a_sign) {
  auto all = many(1);
  all[0].by_path = {{"staged", 1.5}};
  const auto lines = top_lines(all, {}, {.columns = 79});
  EXPECT_EQ(lines[1], "       PID PROGRAM        RD GB/s WR GB/s SPEED    HISTORY     REQS PATHS    +4");
  EXPECT_TRUE(any_has(lines, "staged 1.50")) << lines[2];
  EXPECT_TRUE(lines[0].ends_with("j/k select") || lines[0].ends_with("p pause") || lines[0].ends_with("s sort")) << lines[0];
  EXPECT_FALSE(any_has(top_lines(all, {}, {.columns = 119}), " +"));
}

TEST(top_view, bars_and_histories_share_one_scale) {
  auto all = many(3);
  all[0].read_gigabytes_per_second = 4;
  all[0].history = {0, 2, 8, 4};
  all[1].written_gigabytes_per_second = 1;
  all[1].history = {1};
  const auto ascii = top_lines(all, {}, {.columns = 79});
  EXPECT_TRUE(any_has(ascii, "   4.00    0.00 ########       _:#=     1 ")) << ascii[2];
  EXPECT_TRUE(any_has(ascii, "   0.00    1.00 ##                .     1 ")) << ascii[3];
  EXPECT_TRUE(any_has(ascii, "   0.00    0.00                         1 ")) << ascii[4];
  const auto blocks = top_lines(all, {}, {.columns = 79, .has_blocks = true});
  EXPECT_TRUE(any_has(blocks, "   4.00    0.00 ████████       ▁▃█▅     1 ")) << blocks[2];
  EXPECT_TRUE(any_has(blocks, "   0.00    1.00 ██                ▂     1 ")) << blocks[3];
  for (const auto& line : blocks) EXPECT_LE(width_of(line), 79U) << line;
}

TEST(top_view, rare_figures_make_room_for_notes) {
  auto all = many(1);
  all[0].by_path = {{"staged", 1.5}, {"mapped", 2.5}, {"dma_buf", 3.5}};
  const auto lines = top_lines(all, {}, {.columns = 119});
  EXPECT_TRUE(lines[2].ends_with(" staged 1.50 mapped 2.50 dma_buf 3.50")) << lines[2];
  EXPECT_FALSE(any_has(lines, "FALLB"));
  EXPECT_TRUE(any_has(lines, "OLDEST"));
}

TEST(top_view, wide_screens_show_a_longer_history) {
  auto all = many(1);
  all[0].history.assign(speed_histories::most, 1.0);
  const auto longest = [&](std::size_t columns) {
    const auto line = top_lines(all, {}, {.columns = columns})[2];
    return std::count(line.begin(), line.end(), '#');
  };
  EXPECT_EQ(longest(79), 10);
  EXPECT_GT(longest(159), 25);
  EXPECT_LE(longest(500), 120);
}

TEST(top_view, bars_end_at_eighths_and_never_outgrow_their_column) {
  EXPECT_EQ(bar(1, 16, 8, true), "▌       ");
  EXPECT_EQ(bar(1, 2, 8, true), "████    ");
  EXPECT_EQ(bar(9, 2, 4, true), "████");
  EXPECT_EQ(bar(1, 2, 8, false), "####    ");
  EXPECT_EQ(bar(0, 0, 3, true), "   ");
  EXPECT_EQ(sparkline({}, 0, 3, true), "   ");
  const std::vector<double> speeds{9, 0, 1};
  EXPECT_EQ(sparkline(speeds, 1, 2, true), "▁█");
}

TEST(top_view, a_history_is_kept_while_the_process_is_seen) {
  speed_histories histories;
  auto all = many(2);
  for (int i = 0; i < 130; ++i) {
    all[0].read_gigabytes_per_second = i;
    histories.add(all);
  }
  EXPECT_EQ(all[0].history.size(), speed_histories::most);
  EXPECT_EQ(all[0].history.back(), 129);
  auto others = many(1);
  others[0].now.pid = 5;
  histories.add(others);
  EXPECT_EQ(others[0].history.size(), 1U);
  histories.add(all);
  EXPECT_EQ(all[0].history.size(), 1U) << "it was forgotten";
}

TEST(top_view, says_of_whom_there_are_none) {
  EXPECT_TRUE(any_has(top_lines({}, {}, {}), "  no process of this user uses Penstock"));
  EXPECT_TRUE(any_has(top_lines({}, {}, {.of_those_named = true}), "  no process of this user with these PIDs uses Penstock"));
}

TEST(top_view, fits_whatever_screen_there_is) {
  for (std::size_t rows = 1; rows < 6; ++rows) {
    for (std::size_t columns = 1; columns < 24; ++columns) {
      const auto lines = top_lines(many(9), {{errc::io, "a problem"}}, {.columns = columns, .rows = rows, .selected_pid = 1008});
      EXPECT_LE(lines.size(), rows);
      EXPECT_EQ(any_has(lines, ">     100"), rows >= 3 && columns >= 9) << rows << " x " << columns;
      for (const auto& line : lines) EXPECT_LE(line.size(), columns);
    }
  }
}

TEST(top_view, ages_are_told_of_whatever_time_a_board_says) {
  request_info request;
  request.since_ns = std::numeric_limits<std::int64_t>::min();
  EXPECT_GT(age_seconds(request), 9e9);
  request.since_ns = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(age_seconds(request), 0);
}

}  // namespace
}  // namespace penstock::cli
