// The penstock command: its output streams and exit codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"
#include "cli/terminal.hpp"
#include "penstock/version.hpp"

namespace penstock::cli_test {
namespace {

TEST(command, version_and_help_go_to_stdout) {
  const ended_program version_run = run({"--version"});
  EXPECT_EQ(version_run.exit_code, 0);
  EXPECT_EQ(version_run.out, "penstock " + std::string(version()) + "\n");
  const ended_program help = run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* name : {"demo", "read", "write", "io", "verify", "cp", "check", "devices", "bench", "pipe-bench", "stats", "top", "run"})
    EXPECT_TRUE(contains(help.out, name)) << name;
  EXPECT_EQ(help.err, "");
}

TEST(command, usage_errors_exit_with_2_and_say_why_on_stderr) {
  const std::vector<std::vector<std::string>> mistakes{{},
                                                       {"frobnicate"},
                                                       {"read"},
                                                       {"read", "x", "--no-such-option"},
                                                       {"read", "x", "--length", "many"},
                                                       {"read", "x", "--path", "sideways"},
                                                       {"read", "x", "--repeat", "0"},
                                                       {"read", "x", "--gpu", "0", "--device", "host:0"},
                                                       {"write", "--size", "1k"},
                                                       {"write", "x", "--size", "-1"},
                                                       {"bench", "--rows", "no-such-row"},
                                                       {"bench", "--size", "1MiB"},
                                                       {"pipe-bench", "--sizes", "4KiB,much"},
                                                       {"pipe-bench", "--sizes", "0"},
                                                       {"pipe-bench", "--connections", "17"},
                                                       {"pipe-bench", "--seconds", "-1"}};
  for (const auto& arguments : mistakes) {
    const ended_program ended = run(arguments);
    EXPECT_EQ(ended.exit_code, 2) << (arguments.empty() ? "" : arguments.back()) << ended.out << ended.err;
    EXPECT_NE(ended.err, "");
  }
}

TEST(command, a_missing_file_is_named_on_stderr) {
  for (const char* name : {"read", "check"}) {
    const ended_program ended = run({name, "/nowhere/at-all", "--device", "host:0"});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_EQ(ended.err, "penstock: open /nowhere/at-all: No such file or directory (os 2)\n");
  }
}

TEST(command, a_missing_device_is_named_with_those_there_are) {
  const scratch_directory directory;
  const ended_program ended = run({"read", directory.make_file("data", 1), "--device", "cuda:77"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, "cuda:77")) << ended.err;
  EXPECT_TRUE(contains(ended.err, "host:0")) << ended.err;
}

TEST(command, devices_have_short_names_everywhere) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", mib);
  for (const char* name : {"cpu", "host", "host:0"}) {
    EXPECT_EQ(run({"read", path, "--device", name}).exit_code, 0) << name;
    EXPECT_EQ(run({"check", path, "--device", name}).exit_code, 0) << name;
    EXPECT_EQ(run({"io", "-f", path, "-d", name}).exit_code, 0) << name;
    EXPECT_EQ(run({"verify", "-f", path, "-d", name}).exit_code, 0) << name;
  }
  for (const char* name : {"cuda", "77", "cuda:77"}) {
    const auto ended = run({"check", path, "--device", name});
    EXPECT_TRUE(ended.exit_code == 0 || contains(ended.err, "there is no device \"" + std::string(name) + "\"")) << ended.err;
  }
}

TEST(command, devices_lists_the_host_device) {
  const ended_program ended = run({"devices"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "host:0")) << ended.out;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

TEST(command, a_missing_driver_is_said_once_in_one_short_line) {
  if (!contains(run({"devices"}).out, "no NVIDIA driver")) GTEST_SKIP() << "there is an NVIDIA driver: needs a machine without GPU";
  const scratch_directory directory;
  const std::string path = directory.make_file("data", mib);
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"devices"}, {"check", path}, {"read", path, path}}) {
    const ended_program ended = run(arguments);
    EXPECT_EQ(count(ended.out + ended.err, "no NVIDIA driver\n"), 1U) << ended.out << ended.err;
    EXPECT_EQ(count(ended.out + ended.err, "no GPU: no NVIDIA driver\n"), 1U) << ended.out << ended.err;
    EXPECT_FALSE(contains(ended.out + ended.err, "libcuda")) << ended.out;
  }
  EXPECT_EQ(run({"read", path, "--device", "cuda:0"}).err,
            "penstock: there is no device \"cuda:0\" (no GPU: no NVIDIA driver); available devices: host (also cpu), host:0\n");
  EXPECT_EQ(
      run({"io", "-f", path, "-d", "0"}).err,
      "penstock: there is no device \"cuda:0\" (no GPU: no NVIDIA driver); available devices: host (also cpu), host:0. Omit -d, or use -d "
      "host:0\n");
}

TEST(demo, verifies_its_bytes_and_leaves_no_file_behind) {
  const scratch_directory directory;
  const ended_program ended = run({"demo", "--size", "32MiB", "--dir", directory.path(), "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "from the page cache to the device")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "ceiling")) << ended.out;
  EXPECT_TRUE(contains(ended.out, ": equal")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "; all runs: ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "Next steps:")) << ended.out;
  EXPECT_FALSE(contains(ended.out, "DIFFERENT")) << ended.out;
  EXPECT_EQ(ended.err, "");
  EXPECT_EQ(directory.entries(), 0U);
}

TEST(demo, an_interrupt_removes_the_file) {
  const scratch_directory directory;
  program showing({"demo", "--size", "256MiB", "--dir", directory.path(), "--device", "host:0"});
  ASSERT_TRUE(showing.wait_for_output("pseudo-random bytes")) << showing.finish().err;
  showing.send(SIGINT);
  const ended_program ended = showing.finish();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_EQ(directory.entries(), 0U);
}

TEST(bench, rows_are_listed) {
  const ended_program ended = run({"bench", "--list"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* name : {"hot-4g", "cold-4g", "half-hot", "batch-4k-hot", "call-4k", "unaligned", "write-direct", "start", "pinned"}) {
    EXPECT_TRUE(contains(ended.out, name)) << name;
  }
}

TEST(bench, its_json_holds_verified_rows_and_their_ceilings) {
  const scratch_directory directory;
  const std::vector<std::string> measure{
      "bench", "--quick",  "--size", "64MiB", "--repeats",     "1", "--rows", "hot-4g,call-4k,pinned", "--json",
      "-",     "--device", "host:0", "--dir", directory.path()};
  const ended_program ended = run(measure);
  ASSERT_EQ(ended.exit_code, 0) << ended.out << ended.err;
  const auto report = nlohmann::json::parse(ended.out);
  ASSERT_EQ(report.at("rows").size(), 3U);
  for (const auto& row : report.at("rows")) {
    EXPECT_EQ(row.at("outcome"), "measured") << row;
    EXPECT_EQ(row.at("verified"), true) << row;
  }
  EXPECT_EQ(report.at("rows")[0].at("name"), "hot-4g");
  EXPECT_EQ(report.at("rows")[0].at("bytes"), 64 * mib);
  EXPECT_GT(report.at("rows")[0].at("gb_per_s"), 0.0);
  EXPECT_GT(report.at("ceilings").at("link_to_device_gb_per_s"), 0.0);
  EXPECT_GT(report.at("rows")[1].at("p99_us"), 0.0);
  EXPECT_EQ(ended.err, "");
  EXPECT_EQ(directory.entries(), 0U);
}

TEST(bench, measures_without_io_uring_on_request_and_reports_whether_it_was_used) {
  const scratch_directory directory;
  std::vector<std::string> measure{"bench",   "--quick", "--size", "64MiB",    "--repeats", "1",     "--rows",
                                   "cold-4g", "--json",  "-",      "--device", "host:0",    "--dir", directory.path()};
  const ended_program usual = run(measure);
  ASSERT_EQ(usual.exit_code, 0) << usual.out << usual.err;
  const auto use = nlohmann::json::parse(usual.out).at("io_uring").get<std::string>();
  EXPECT_TRUE(use == "used" || use.starts_with("not used (")) << use;
  measure.emplace_back("--no-io-uring");
  const ended_program without = run(measure);
  ASSERT_EQ(without.exit_code, 0) << without.out << without.err;
  const auto report = nlohmann::json::parse(without.out);
  EXPECT_EQ(report.at("io_uring"), "switched off");
  EXPECT_NE(report.at("rows")[0].at("outcome"), "failed");
}

TEST(bench, its_json_goes_to_stdout_where_no_file_is_named) {
  const scratch_directory directory;
  const std::string file = directory.path() + "/report";
  const std::vector<std::string> common{"bench", "--quick",  "--size", "64MiB", "--repeats",      "1",       "--rows",
                                        "start", "--device", "host:0", "--dir", directory.path(), "--quiet", "--json"};
  const ended_program to_stdout = run(common);
  EXPECT_EQ(nlohmann::json::parse(to_stdout.out).at("rows").size(), 1U) << to_stdout.err;
  auto named = common;
  named.push_back(file);
  const ended_program to_file = run(named);
  EXPECT_TRUE(contains(to_file.out, "1 rows measured")) << to_file.out;
  EXPECT_EQ(directory.entries(), 1U);
}

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) longest = std::max(longest, text.find('\n', at) - at);
  return longest;
}

TEST(bench, its_table_fits_80_columns_where_there_is_no_wider_terminal) {
  const scratch_directory directory;
  const std::vector<std::string> measure{
      "bench", "--quick",  "--size", "64MiB", "--repeats",     "1", "--rows", "hot-4g,call-4k,cold-4g,batch-4k-hot,start", "--sizes",
      "1MiB",  "--device", "host:0", "--dir", directory.path()};
  const auto piped = run(measure);
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_LE(longest_line(piped.out), 80U) << piped.out;
  EXPECT_TRUE(contains(piped.out, "row                 GB/s   each     of   GB/s   s/GB     us     us  MiB path")) << piped.out;
  const auto wide = run_in_terminal(measure, {.columns = 140});
  EXPECT_TRUE(contains(wide, "ceiling GB/s")) << wide;
  EXPECT_TRUE(contains(wide, "verified")) << wide;
}

TEST(pipe_bench, measures_every_size_by_the_channel_that_is_chosen) {
  for (const auto& [memory, channel] : {std::pair("host", "cma"), std::pair("host:0", "cuda_ipc")}) {
    const ended_program ended = run({"pipe-bench", "--from", memory, "--to", memory, "--sizes", "100,300KiB,3MiB", "--seconds", "0.05"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    for (const char* size : {"100 B", "300 KiB", "3 MiB"}) EXPECT_TRUE(contains(ended.out, size)) << ended.out;
    EXPECT_TRUE(contains(ended.out, channel)) << ended.out;
    EXPECT_FALSE(contains(ended.out, "WRONG")) << ended.out;
    EXPECT_TRUE(contains(ended.out, "one way unposted")) << ended.out;
    EXPECT_LE(longest_line(ended.out), 80U) << ended.out;
  }
  const ended_program forced =
      run({"pipe-bench", "--to", "host:0", "--channel", "cuda_basic", "--channel", "basic", "--sizes", "3MiB", "--seconds", "0.05"});
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_FALSE(contains(forced.out, "cuda_ipc")) << forced.out;
  const ended_program striped =
      run({"pipe-bench", "--url", "tcp://127.0.0.1:0", "--connections", "3", "--sizes", "5MiB", "--seconds", "0.05"});
  EXPECT_EQ(striped.exit_code, 0) << striped.err;
  EXPECT_TRUE(contains(striped.out, "mpt         can be used")) << striped.out;
  EXPECT_FALSE(contains(striped.out, "WRONG")) << striped.out;
}

TEST(pipe_bench, its_json_holds_the_rows_and_the_channels_there_are) {
  const ended_program ended = run({"pipe-bench", "--sizes", "4KiB,1.5MiB", "--seconds", "0.05", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto told = nlohmann::json::parse(ended.out);
  EXPECT_EQ(told.at("from"), "host");
  EXPECT_FALSE(told.at("channels").empty());
  ASSERT_EQ(told.at("rows").size(), 2U);
  EXPECT_EQ(told.at("rows")[1].at("bytes"), 3 * mib / 2);
  for (const auto& row : told.at("rows")) {
    EXPECT_GT(row.at("gb_per_s"), 0.0);
    EXPECT_GT(row.at("bare_gb_per_s"), 0.0);
    EXPECT_GT(row.at("one_way_us"), 0.0);
    EXPECT_GT(row.at("unposted_one_way_us"), 0.0);
    EXPECT_EQ(row.at("verified"), true);
  }
  const ended_program quiet = run({"pipe-bench", "--sizes", "4KiB", "--seconds", "0.05", "--quiet"});
  EXPECT_EQ(std::count(quiet.out.begin(), quiet.out.end(), '\n'), 3) << quiet.out;
}

TEST(devices, its_json_lists_them_and_says_why_there_is_no_gpu) {
  const auto told = nlohmann::json::parse(run({"devices", "--json"}).out);
  EXPECT_EQ(told.at("devices").back().at("name"), "host:0");
  EXPECT_EQ(told.at("no_gpu").is_null(), told.at("devices").size() > 1) << told;
}

TEST(demo, its_json_tells_of_the_reads_it_made) {
  const scratch_directory directory;
  const ended_program ended = run({"demo", "--size", "32MiB", "--dir", directory.path(), "--device", "host:0", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto told = nlohmann::json::parse(ended.out);
  EXPECT_EQ(told.at("bytes"), 32 * mib);
  EXPECT_EQ(told.at("device"), "host:0");
  const auto& hot = told.at("reads").at(0);
  EXPECT_EQ(hot.at("name"), "from the page cache to the device");
  EXPECT_EQ(hot.at("verified"), true);
  EXPECT_GT(hot.at("gb_per_s"), 0.0);
  EXPECT_GT(hot.at("ceiling").at("gb_per_s"), 0.0);
  EXPECT_EQ(hot.at("runs_gb_per_s").size(), 3U);
  EXPECT_EQ(hot.at("kept_bytes"), 0U) << "all was in the page cache";
  EXPECT_EQ(hot.at("direct_bytes"), 0U);
  EXPECT_TRUE(told.at("notes").is_array());
}

TEST(pipe_bench, what_cannot_be_is_named) {
  for (const auto& [arguments, named] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"pipe-bench", "--from", "moon:0", "--sizes", "4KiB"}, "moon:0"},
           {{"pipe-bench", "--channel", "pigeon"}, "pigeon"},
           {{"pipe-bench", "--url", "nowhere"}, "nowhere"},
           {{"pipe-bench", "--to", "host:0", "--channel", "basic", "--sizes", "1MiB", "--seconds", "0.05"}, "no channel can transfer"}}) {
    const ended_program ended = run(arguments);
    EXPECT_EQ(ended.exit_code, 1) << named;
    EXPECT_TRUE(contains(ended.err, named)) << ended.err;
  }
}

TEST(bench, a_file_that_exists_is_read_and_left_as_it_was) {
  const scratch_directory directory;
  const std::string path = directory.make_file("mine", 64 * mib);
  const auto before = std::filesystem::last_write_time(path);
  const ended_program ended =
      run({"bench", "--quick", "--repeats", "1", "--rows", "hot-16m,write-hot", "--file", path, "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.err;
  EXPECT_TRUE(contains(ended.out, "2 rows measured and verified, 0 skipped, 0 failed")) << ended.out;
  EXPECT_EQ(std::filesystem::last_write_time(path), before);
  EXPECT_EQ(directory.entries(), 1U);
}

}  // namespace
}  // namespace penstock::cli_test
