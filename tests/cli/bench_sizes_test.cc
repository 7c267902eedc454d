#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/program.hpp"

namespace penstock::cli_test {
namespace {

std::vector<std::string> measure(const scratch_directory& directory, const std::string& sizes) {
  return {"bench", "--quick", "--size",         "64MiB",    "--repeats", "1",       "--rows",
          "start", "--dir",   directory.path(), "--device", "host:0",    "--sizes", sizes};
}

TEST(bench_sizes, every_series_of_a_size_is_measured_and_verified_or_says_why_not) {
  const scratch_directory directory;
  auto words = measure(directory, "4KiB,2MiB");
  words.insert(words.end(), {"--json", "-"});
  const ended_program ended = run(words);
  ASSERT_EQ(ended.exit_code, 0) << ended.out << ended.err;
  std::map<double, std::set<std::string>> seen;
  const auto report = nlohmann::json::parse(ended.out);
  for (const auto& point : report.at("sizes")) {
    seen[point.at("call_bytes").get<double>()].insert(point.at("series").get<std::string>());
    const bool may_lack = point.at("series") == "cold" || point.at("series") == "O_DIRECT";
    if (may_lack && point.at("outcome") == "skipped") {  // tmpfs keeps its pages
      EXPECT_NE(point.at("reason"), "");
      continue;
    }
    ASSERT_EQ(point.at("outcome"), "measured") << point;
    EXPECT_EQ(point.at("verified"), true) << point;
    EXPECT_GT(point.at("gb_per_s"), 0.0) << point;
    EXPECT_EQ(point.at("bytes").get<double>(), point.at("calls").get<double>() * point.at("call_bytes").get<double>()) << point;
    double least = 0;
    ASSERT_GE(point.at("latency_us").size(), 3U) << point;
    for (const auto& pair : point.at("latency_us")) {
      EXPECT_GE(pair[1], least) << point;
      least = pair[1];
    }
  }
  const std::set<std::string> of_all{"hot", "unaligned", "cold", "pread", "O_DIRECT"};
  EXPECT_EQ(seen.at(2.0 * mib), of_all);  // 128 of them do not fit into the file
  auto with_batches = of_all;
  with_batches.insert("batch");
  EXPECT_EQ(seen.at(4096), with_batches);
  EXPECT_EQ(directory.entries(), 0U);
}

TEST(bench_sizes, calls_that_do_not_fit_into_the_file_are_left_out) {
  const scratch_directory directory;
  auto words = measure(directory, "64MiB,128MiB");
  words.insert(words.end(), {"--json", "-"});
  const ended_program ended = run(words);
  ASSERT_EQ(ended.exit_code, 0) << ended.out << ended.err;
  const auto told = nlohmann::json::parse(ended.out);
  ASSERT_FALSE(told.at("sizes").empty());
  for (const auto& point : told.at("sizes")) {
    EXPECT_EQ(point.at("call_bytes"), 64 * mib) << point;
    EXPECT_NE(point.at("series"), "unaligned") << point;
  }
}

TEST(bench_sizes, the_table_has_a_line_for_each) {
  const scratch_directory directory;
  const ended_program ended = run(measure(directory, "64KiB"));
  ASSERT_EQ(ended.exit_code, 0) << ended.out << ended.err;
  for (const char* line : {"64 KiB hot", "64 KiB unaligned", "64 KiB cold", "64 KiB pread", "64 KiB batch"}) {
    EXPECT_TRUE(contains(ended.out, line)) << ended.out;
  }
}

TEST(bench_sizes, what_is_no_size_is_refused) {
  for (const char* sizes : {"4KiB,much", "0"}) {
    const ended_program ended = run({"bench", "--sizes", sizes});
    EXPECT_EQ(ended.exit_code, 2) << sizes;
    EXPECT_TRUE(contains(ended.err, "penstock: ")) << ended.err;
    EXPECT_EQ(ended.out, "") << sizes;
  }
}

}  // namespace
}  // namespace penstock::cli_test
