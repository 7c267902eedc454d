// penstock check.
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"
#include "cli/recorded_machine.hpp"
#include "cli/terminal.hpp"

namespace penstock::cli_test {
namespace {

// A file of 1 MiB in the lower layer of an overlay; unmounted with the object.
class overlay {
 public:
  explicit overlay(const scratch_directory& in) : at_(in.path() + "/at") {
    for (const char* part : {"lower", "upper", "work", "at"}) std::filesystem::create_directory(in.path() + "/" + part);
    (void)in.make_file("lower/data", mib);
    const std::string layers = "lowerdir=" + in.path() + "/lower,upperdir=" + in.path() + "/upper,workdir=" + in.path() + "/work";
    if (::mount("overlay", at_.c_str(), "overlay", 0, layers.c_str()) != 0)
      error_ = std::string("cannot mount an overlay: ") + std::strerror(errno);
  }
  overlay(const overlay&) = delete;
  overlay& operator=(const overlay&) = delete;
  ~overlay() {
    if (error_.empty()) ::umount2(at_.c_str(), MNT_DETACH);
  }
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] std::string file() const { return at_ + "/data"; }

 private:
  std::string at_, error_;
};

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

TEST(check, has_colour_on_a_terminal_that_may_have_it) {
  const scratch_directory directory;
  std::filesystem::create_directories(directory.path() + "/proc");
  const std::vector<std::string> arguments{"check", "--root", directory.path()};
  EXPECT_TRUE(contains(run_in_terminal(arguments), "\x1b[32mok"));
  EXPECT_FALSE(contains(run_in_terminal(arguments, {.term = "dumb"}), "\x1b["));
  EXPECT_FALSE(contains(run(arguments).out, "\x1b["));
  ::setenv("NO_COLOR", "1", 1);
  const auto refused = run_in_terminal(arguments);
  ::unsetenv("NO_COLOR");
  EXPECT_TRUE(contains(refused, "ok")) << refused;
  EXPECT_FALSE(contains(refused, "\x1b[")) << refused;
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
  const overlay layers(directory);
  if (!layers.error().empty()) GTEST_SKIP() << layers.error();
  const ended_program ended = run({"check", layers.file(), "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(std::filesystem::is_empty(directory.path() + "/upper")) << "copied up";
}

TEST(check, tells_what_each_key_of_a_cufile_json_does) {
  const scratch_directory directory;
  const std::string file = directory.path() + "/cufile.json";
  std::ofstream(file) << "{ // a comment\n \"logging\": {\"level\": \"INFO\"}, \"properties\": {\"use_poll_mode\": true, \"io_batchsize\": "
                         "9999}, \"x\": 1}";
  const ended_program ended = run({"check", "--cufile-json", file});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* part : {"logging.level = \"INFO\"", "properties.use_poll_mode = true: used by NVIDIA's library for GPU-direct transfers",
                           "properties.io_batchsize = 9999", "x = 1: unknown key"}) {
    EXPECT_TRUE(contains(ended.out, part)) << part << "\n" << ended.out;
  }
  const auto told = nlohmann::json::parse(run({"check", "--cufile-json", file, "--json"}).out);
  EXPECT_EQ(told.at("keys").size(), 4U);
  std::ofstream(file) << "{ broken";
  const ended_program refused = run({"check", "--cufile-json", file});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(contains(refused.err, file)) << refused.err;
  EXPECT_EQ(run({"check", file, "--cufile-json", file}).exit_code, 2);
}

TEST(check, without_a_file_looks_at_the_machine) {
  const ended_program ended = run({"check", "--json"});
  EXPECT_TRUE(ended.exit_code == 0 || ended.exit_code == 3) << ended.err;
  const auto told = nlohmann::json::parse(ended.out);
  EXPECT_EQ(ended.exit_code == 3, told.at("counts").at("broken") > 0);
  std::size_t counted = 0;
  for (const auto& [verdict, count] : told.at("counts").items()) counted += count.get<std::size_t>();
  EXPECT_EQ(counted, told.at("findings").size());
  const auto is_asked = [](const auto& each) { return each.at("id").template get<std::string>().starts_with("memfd."); };
  EXPECT_TRUE(std::ranges::any_of(told.at("findings"), is_asked)) << "this machine was not asked: " << told;
  const auto is_own = [](const auto& each) { return each.at("id") == "cufile.ours"; };
  EXPECT_TRUE(std::ranges::any_of(told.at("findings"), is_own)) << "Penstock's libcufile lies beside the command: " << told;
  EXPECT_EQ(run({"check", "--root", "/missing"}).exit_code, 2);
  EXPECT_EQ(run({"check", "-p", "--cufile-json", "/dev/null"}).exit_code, 2);
}

TEST(check, tells_people_what_to_do_and_colours_nothing_in_a_pipe) {
  const scratch_directory directory;
  const recorded_machine machine(std::string(PENSTOCK_MACHINES_PATH) + "/peer-traffic-through-cpu.machine", directory.path());
  const ended_program ended = run({"check", "--root", directory.path()});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* part :
       {"platform\n", "  slow     0000:b1:00.0: ACS is on in this switch port", "\n           -> run setpci -s 0000:b1:00.0"}) {
    EXPECT_TRUE(contains(ended.out, part)) << part << "\n" << ended.out;
  }
  EXPECT_FALSE(contains(ended.out, "\x1b["));
  const ended_program quiet = run({"check", "--root", directory.path(), "-q"});
  EXPECT_FALSE(contains(quiet.out, "  ok ")) << quiet.out;
  EXPECT_TRUE(contains(quiet.out, "  slow ")) << quiet.out;
}

TEST(check, takes_the_options_of_gdscheck) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", mib);
  const ended_program named = run({"check", "-f", path, "--json", "--device", "host:0"});
  EXPECT_EQ(named.exit_code, 0) << named.err;
  EXPECT_EQ(nlohmann::json::parse(named.out).at("file"), path);
  EXPECT_EQ(run({"check", "-p", "--root", directory.path()}).exit_code, 0);
  EXPECT_EQ(run({"check", path, "-f", path, "--device", "host:0", "-q"}).exit_code, 0);
  EXPECT_EQ(run({"check", "-t", path}).exit_code, 2);
}

TEST(check, tells_versions_and_what_is_near_each_gpu) {
  const scratch_directory directory;
  const recorded_machine machine(std::string(PENSTOCK_MACHINES_PATH) + "/four-gpus.machine", directory.path());
  const ended_program ended = run({"check", "-v", "-t", "--root", directory.path(), "--json"});
  EXPECT_EQ(ended.exit_code, 0) << "findings were not asked for, though some are of what is broken: " << ended.err;
  const auto told = nlohmann::json::parse(ended.out);
  EXPECT_FALSE(told.contains("findings"));
  EXPECT_EQ(told.at("versions").at("nvidia_driver"), "580.95.05");
  EXPECT_EQ(told.at("versions").at("libcuda"), "580.95.05");
  EXPECT_TRUE(told.at("versions").at("nvidia_fs").is_null());
  ASSERT_EQ(told.at("topology").size(), 20U);  // four GPUs, each with four cards and a drive
  const auto& first = told.at("topology").at(0);
  EXPECT_EQ(first.at("gpu"), "0000:12:00.0");
  EXPECT_EQ(first.at("what"), "mlx5_0");
  EXPECT_EQ(first.at("relation"), "below one switch");
  EXPECT_EQ(first.at("shared"), "0000:11:00.0");
  EXPECT_EQ(told.at("topology").at(1).at("relation"), "of one NUMA node");
  EXPECT_EQ(told.at("topology").at(4).at("relation"), "of another NUMA node");
  const ended_program text = run({"check", "-v", "-t", "--root", directory.path()});
  for (const char* part : {"nvidia_driver    580.95.05", "mlx5_0   0000:13:00.0: below one switch, 0000:11:00.0"}) {
    EXPECT_TRUE(contains(text.out, part)) << part << "\n" << text.out;
  }
}

TEST(check, with_a_file_tells_of_its_file_system_too) {
  const scratch_directory directory;
  const auto told = nlohmann::json::parse(run({"check", directory.make_file("data", 10), "--json", "--device", "host:0"}).out);
  ASSERT_FALSE(told.at("findings").empty());
  for (const auto& each : told.at("findings")) EXPECT_EQ(each.at("group"), "file_systems") << each;
}

TEST(check, looks_at_every_file_of_a_folder_and_at_several) {
  const scratch_directory directory;
  const std::string first = directory.make_file("a", mib);
  const std::string second = directory.make_file("b", 3);
  const ended_program folder = run({"check", directory.path(), "--device", "host:0"});
  EXPECT_EQ(folder.exit_code, 0) << folder.err;
  for (const std::string& name : {first, second}) EXPECT_TRUE(contains(folder.out, name + "\n")) << folder.out;
  const auto told = nlohmann::json::parse(run({"check", second, first, "--json", "--device", "host:0"}).out);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].at("file"), second);
  EXPECT_EQ(told[1].at("file"), first);
}

TEST(check, a_file_that_is_missing_does_not_hide_the_others) {
  const scratch_directory directory;
  const std::string path = directory.make_file("data", 10);
  const ended_program ended = run({"check", directory.path() + "/missing", path, "--json"});
  EXPECT_EQ(ended.exit_code, 1);
  const std::string error = "open " + directory.path() + "/missing: No such file or directory (os 2)";
  EXPECT_EQ(ended.err, "penstock: " + error + "\n");
  const auto told = nlohmann::json::parse(ended.out);
  EXPECT_EQ(told.at(0).at("error"), error);
  EXPECT_EQ(told.at(1).at("size"), 10);
}

// The kernel tells nothing of the files of others, and those of an overlay cannot be sampled either.
TEST(check, a_residency_that_is_not_known_is_unknown_and_null) {
  const scratch_directory directory;
  const overlay layers(directory);
  if (!layers.error().empty()) GTEST_SKIP() << layers.error();
  const std::string become_nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups ";
  if (std::system((become_nobody + "true 2>/dev/null").c_str()) != 0) GTEST_SKIP() << "user ids cannot be set here";
  const std::filesystem::path build = std::filesystem::path(PENSTOCK_CLI_PATH).parent_path();
  for (const char* part : {"penstock", "libpenstock.so.0"})
    std::filesystem::copy_file(build / part, directory.path() + "/" + part);  // the build folder need not be open to others
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0755));
  const auto as_nobody = [&](const std::string& options) {
    const std::string command =
        become_nobody + directory.path() + "/penstock check " + layers.file() + " --device host:0 " + options + " 2>&1";
    std::string text;
    std::FILE* const from = ::popen(command.c_str(), "r");
    for (int letter = 0; (letter = std::fgetc(from)) != EOF;) text += static_cast<char>(letter);
    EXPECT_EQ(::pclose(from), 0) << text;
    return text;
  };
  EXPECT_TRUE(contains(as_nobody(""), "page cache   unknown\n")) << as_nobody("");
  const auto told = nlohmann::json::parse(as_nobody("--json"));
  EXPECT_TRUE(told.at("cached_bytes").is_null()) << told;
  EXPECT_TRUE(contains(told.at("write").at("error"), "Permission denied")) << told;
}

}  // namespace
}  // namespace penstock::cli_test
