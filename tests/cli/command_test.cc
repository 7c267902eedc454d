// The penstock command as a user meets it: what it prints where, and its exit codes.
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"
#include "penstock/version.hpp"

namespace penstock::cli_test {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(command, version_and_help_go_to_stdout) {
  const ended_program version_run = run({"--version"});
  EXPECT_EQ(version_run.exit_code, 0);
  EXPECT_EQ(version_run.out, "penstock " + std::string(version()) + "\n");
  const ended_program help = run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* name : {"demo", "read", "write", "check", "devices", "bench", "pipe-bench", "run"})
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
                                                       {"write", "x"},
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
            "penstock: there is no device \"cuda:0\"; there is: host:0 (no GPU: no NVIDIA driver)\n");
}

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

TEST(check, its_json_covers_the_file_once) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", 3 * mib + 1);
  const ended_program ended = run({"check", path, "--json", "--device", "host:0"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto report = nlohmann::json::parse(ended.out);
  EXPECT_EQ(report.at("file"), path);
  EXPECT_EQ(report.at("size"), 3 * mib + 1);
  EXPECT_EQ(report.at("device"), "host:0");
  EXPECT_FALSE(report.at("devices").empty());
  for (const char* way : {"read", "write"}) {
    std::uint64_t end = 0;
    for (const auto& part : report.at(way).at("parts")) {
      EXPECT_EQ(part.at("offset"), end) << way;
      EXPECT_NE(part.at("reason"), "") << way;
      end += part.at("length").get<std::uint64_t>();
    }
    EXPECT_EQ(end, 3 * mib + 1) << way;
  }
}

TEST(check, tells_size_file_system_and_paths_to_people) {
  const scratch_directory directory;
  const ended_program ended = run({"check", directory.make_file("data", mib), "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* part : {"1 MiB (1048576 bytes)", "file system", "page cache", "reads to host:0", "writes from host:0"}) {
    EXPECT_TRUE(contains(ended.out, part)) << part << "\n" << ended.out;
  }
}

TEST(check, tells_of_the_device_or_of_host_memory_that_was_named) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", mib);
  const ended_program ended = run({"check", path, "--json", "--device", "host"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto report = nlohmann::json::parse(ended.out);
  EXPECT_EQ(report.at("device"), "host");
  for (const char* way : {"read", "write"}) EXPECT_EQ(report.at(way).at("parts").at(0).at("path"), "posix") << way;
  const ended_program unknown = run({"check", path, "--device", "host:7"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_TRUE(contains(unknown.err, "host:0")) << unknown.err;
}

TEST(check, opens_nothing_for_writing) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", mib);
  const int watch = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  ASSERT_GE(::inotify_add_watch(watch, path.c_str(), IN_CLOSE_WRITE | IN_MODIFY | IN_ATTRIB), 0);
  EXPECT_EQ(run({"check", path, "--device", "host:0"}).exit_code, 0);
  EXPECT_EQ(run({"check", path, "--json", "--device", "host:0"}).exit_code, 0);
  alignas(inotify_event) std::array<char, 4096> events;
  EXPECT_EQ(::read(watch, events.data(), events.size()), -1) << "the file was opened for writing, or changed";
  ::close(watch);
}

TEST(check, leaves_a_file_in_the_lower_layer_of_an_overlay) {
  const scratch_directory directory;
  for (const char* part : {"lower", "upper", "work", "at"}) std::filesystem::create_directory(directory.path() + "/" + part);
  (void)directory.make_file("lower/data", mib);
  const std::string layers =
      "lowerdir=" + directory.path() + "/lower,upperdir=" + directory.path() + "/upper,workdir=" + directory.path() + "/work";
  const std::string at = directory.path() + "/at";
  if (::mount("overlay", at.c_str(), "overlay", 0, layers.c_str()) != 0)
    GTEST_SKIP() << "cannot mount an overlay: " << std::strerror(errno);
  const ended_program ended = run({"check", at + "/data", "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(std::filesystem::is_empty(directory.path() + "/upper")) << "copied up";
  EXPECT_EQ(::umount2(at.c_str(), MNT_DETACH), 0);
}

TEST(check, tells_what_each_key_of_a_cufile_json_does) {
  const scratch_directory directory;
  const std::string file = directory.path() + "/cufile.json";
  std::ofstream(file) << "{ // a comment\n \"logging\": {\"level\": \"INFO\"}, \"properties\": {\"use_poll_mode\": true, \"io_batchsize\": "
                         "9999}, \"x\": 1}";
  const ended_program ended = run({"check", "--cufile-json", file});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* part : {"logging.level = \"INFO\"", "properties.use_poll_mode = true: accepted without effect",
                           "properties.io_batchsize = 9999", "x = 1: unknown key"}) {
    EXPECT_TRUE(contains(ended.out, part)) << part << "\n" << ended.out;
  }
  const auto told = nlohmann::json::parse(run({"check", "--cufile-json", file, "--json"}).out);
  EXPECT_EQ(told.at("keys").size(), 4U);
  std::ofstream(file) << "{ broken";
  const ended_program refused = run({"check", "--cufile-json", file});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(contains(refused.err, file)) << refused.err;
  EXPECT_EQ(run({"check"}).exit_code, 2);
  EXPECT_EQ(run({"check", file, "--cufile-json", file}).exit_code, 2);
}

TEST(demo, verifies_its_bytes_and_leaves_no_file_behind) {
  const scratch_directory directory;
  const ended_program ended = run({"demo", "--size", "32MiB", "--dir", directory.path(), "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "from the page cache to the device")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "ceiling")) << ended.out;
  EXPECT_TRUE(contains(ended.out, ": equal")) << ended.out;
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
  const ended_program ended = run({"bench", "--quick", "--size", "64MiB", "--repeats", "1", "--rows", "hot-4g,call-4k,pinned", "--json",
                                   "-", "--device", "host:0", "--dir", directory.path()});
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

TEST(pipe_bench, measures_every_size_by_the_channel_that_is_chosen) {
  for (const auto& [memory, channel] : {std::pair("host", "cma"), std::pair("host:0", "cuda_ipc")}) {
    const ended_program ended = run({"pipe-bench", "--from", memory, "--to", memory, "--sizes", "100,300KiB,3MiB", "--seconds", "0.05"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    for (const char* size : {"100 B", "300 KiB", "3 MiB"}) EXPECT_TRUE(contains(ended.out, size)) << ended.out;
    EXPECT_TRUE(contains(ended.out, channel)) << ended.out;
    EXPECT_FALSE(contains(ended.out, "WRONG")) << ended.out;
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

TEST(pipe_bench, what_cannot_be_is_named) {
  for (const auto& [arguments, named] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"pipe-bench", "--from", "moon:0", "--sizes", "4KiB"}, "moon:0"},
           {{"pipe-bench", "--channel", "pigeon"}, "pigeon"},
           {{"pipe-bench", "--url", "nowhere"}, "nowhere"},
           {{"pipe-bench", "--to", "host:0", "--channel", "basic", "--sizes", "1MiB", "--seconds", "0.05"}, "no channel leads"}}) {
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
