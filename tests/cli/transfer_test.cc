// penstock read and penstock write.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace penstock::cli_test {
namespace {

TEST(read, verifies_a_real_file_and_draws_no_bar_in_a_pipe) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", 5 * mib + 17);
  const ended_program ended = run({"read", path, "--verify", "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, path + ": 5 MiB in ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, ", verified")) << ended.out;
  EXPECT_FALSE(contains(ended.out, "\r")) << ended.out;
  EXPECT_EQ(ended.err, "");
}

TEST(read, every_file_gets_a_line_and_a_failing_one_does_not_stop_the_others) {
  const scratch_directory directory;
  const std::string first = directory.make_file("first", mib);
  const std::string last = directory.make_file("last", 3);
  const ended_program ended = run({"read", first, directory.path() + "/missing", last, "--verify", "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.out, first + ": 1 MiB in ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, last + ": 3 B in ")) << ended.out;
  EXPECT_TRUE(contains(ended.err, "missing")) << ended.err;
}

TEST(read, a_range_is_cut_at_the_end_of_the_file) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", 3 * mib + 5);
  const auto read = [&](const std::string& offset, const std::string& length) {
    const ended_program ended = run({"read", path, "--verify", "--device", "host:0", "--offset", offset, "--length", length});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_TRUE(contains(ended.out, ", verified")) << ended.out;
    return ended.out;
  };
  EXPECT_TRUE(contains(read("1M", "1KiB"), ": 1 KiB in "));
  EXPECT_TRUE(contains(read("3MiB", "1GiB"), ": 5 B in "));
  EXPECT_TRUE(contains(read("4MiB", "1GiB"), ": 0 B in "));
}

TEST(read, each_forced_path_that_carries_the_bytes_is_reported) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", 8 * mib);
  const ended_program ended = run({"read", path, "--verify", "--device", "host:0", "--path", "staged"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "path staged, verified")) << ended.out;
}

// The read is repeated until the signal comes, so no moment is too early or too late for it.
TEST(read, an_interrupt_ends_it_cleanly_with_130) {
  const scratch_directory directory;
  program reading({"read", directory.make_sparse_file("big", 512 * mib), "--device", "host:0", "--repeat", "1000000"});
  ASSERT_TRUE(reading.wait_for_output(" GB/s")) << reading.finish().err;
  reading.send(SIGINT);
  const ended_program ended = reading.finish();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
}

TEST(write, makes_a_file_that_reads_back_equal) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/new";
  for (const bool direct : {false, true}) {
    std::vector<std::string> arguments{"write", path, "--size", "5242897", "--verify", "--device", "host:0", "--force"};
    if (direct) arguments.emplace_back("--direct");
    const ended_program ended = run(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_TRUE(contains(ended.out, ", verified")) << ended.out;
    EXPECT_EQ(std::filesystem::file_size(path), 5242897U);
  }
}

TEST(write, does_not_overwrite_without_force) {
  const scratch_directory directory;
  const std::string path = directory.make_file("mine", 10);
  const ended_program refused = run({"write", path, "--size", "1M", "--device", "host:0"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(contains(refused.err, "--force")) << refused.err;
  EXPECT_EQ(std::filesystem::file_size(path), 10U);
  EXPECT_EQ(run({"write", path, "--size", "1M", "--device", "host:0", "--force"}).exit_code, 0);
  EXPECT_EQ(std::filesystem::file_size(path), mib);
}

TEST(write, takes_memory_of_the_host_too_and_tells_its_figures_as_json) {
  const scratch_directory directory;
  const std::string path = directory.path() + "/new";
  const ended_program ended = run({"write", path, "--size", "1.5MiB", "--verify", "--device", "host", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto told = nlohmann::json::parse(ended.out);
  EXPECT_EQ(told.at("file"), path);
  EXPECT_EQ(told.at("device"), "host");
  EXPECT_EQ(told.at("bytes"), 3 * mib / 2);
  EXPECT_EQ(told.at("verified"), true);
  EXPECT_EQ(told.at("error"), nullptr);
  EXPECT_GT(told.at("gb_per_s"), 0.0);
}

TEST(write, what_cannot_be_made_is_named) {
  const ended_program ended = run({"write", "/nowhere/new", "--size", "1k", "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.err, "penstock: open /nowhere/new for writing: No such file or directory (os 2)\n");
}

TEST(read, goes_to_memory_of_the_host_where_that_is_asked_for) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", 5 * mib + 17);
  const ended_program ended = run({"read", path, "--verify", "--device", "host"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "to host (host memory)\n")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "path posix, verified")) << ended.out;
}

TEST(read, takes_every_file_of_a_folder_in_order_and_sums_them_up) {
  const scratch_directory directory;
  std::filesystem::create_directories(directory.path() + "/a/b");
  std::filesystem::create_directories(directory.path() + "/empty");
  const std::string second = directory.make_file("a/x", mib);
  const std::string first = directory.make_file("a/b/y", 3 * mib);
  const ended_program ended = run({"read", directory.path() + "/a", "--verify", "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_LT(ended.out.find(first + ": 3 MiB in "), ended.out.find(second + ": 1 MiB in ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "2 reads: 4 MiB in ")) << ended.out;
  const ended_program none = run({"read", directory.path() + "/empty", "--device", "host:0"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_EQ(none.err, "penstock: " + directory.path() + "/empty contains no files\n");
}

TEST(read, a_folder_that_cannot_be_listed_is_named) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may list any folder";
  const scratch_directory directory;
  std::filesystem::create_directory(directory.path() + "/shut");
  std::filesystem::permissions(directory.path() + "/shut", std::filesystem::perms::none);
  const ended_program ended = run({"read", directory.path() + "/shut", "--device", "host:0"});
  EXPECT_EQ(ended.err, "penstock: list " + directory.path() + "/shut: Permission denied (os 13)\n");
}

TEST(read, its_json_tells_of_every_read_and_of_what_failed) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", 2 * mib);
  const ended_program ended = run({"read", path, directory.path() + "/missing", "--repeat", "2", "--device", "host:0", "--json"});
  EXPECT_EQ(ended.exit_code, 1);
  const auto told = nlohmann::json::parse(ended.out);
  EXPECT_EQ(told.at("device"), "host:0");
  ASSERT_EQ(told.at("reads").size(), 4U);
  EXPECT_EQ(told.at("reads")[0].at("file"), path);
  EXPECT_EQ(told.at("reads")[0].at("bytes"), 2 * mib);
  EXPECT_GT(told.at("reads")[0].at("gb_per_s"), 0.0);
  EXPECT_EQ(told.at("reads")[0].at("verified"), nullptr);
  EXPECT_EQ(told.at("reads")[1].at("error"), "open " + directory.path() + "/missing: No such file or directory (os 2)");
  EXPECT_EQ(told.at("reads")[1].at("gb_per_s"), nullptr);
}

TEST(read, says_figures_only_where_it_is_to_be_quiet) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", mib);
  const ended_program ended = run({"read", path, path, "--quiet"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 2) << ended.out;
  EXPECT_EQ(ended.out.rfind(path + ": 1 MiB in ", 0), 0U) << ended.out;
}

}  // namespace
}  // namespace penstock::cli_test
