// Names and contents with terminal control characters: no command prints them raw, while lists and JSON stay exact.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/common/say.cc"  // NOLINT(bugprone-suspicious-include)
#include "cli/program.hpp"
#include "cli/terminal.hpp"
#include "penstock/tensors.hpp"

namespace penstock::cli_test {
namespace {

using words = std::vector<std::string>;

// A title of the window, a line feed with what looks like a line of ours, a control character of two bytes, and what is no UTF-8.
constexpr auto hostile =
    "a\x1b]0;owned\x07\npenstock: all is well\xc2\x9b"
    "2J\xff\x7f";

// Line feeds are ours; so is nothing else.
bool is_harmless(const std::string& text) {
  const auto lines = printable_text(text);
  return std::equal(lines.begin(), lines.end(), text.begin(), [](char shown, char raw) { return shown == raw || raw == '\n'; });
}

class hostile_names : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& ending) const { return directory_.path() + "/" + hostile + ending; }
  [[nodiscard]] std::string model() const {
    std::vector<tensor_facts> tensors{{"w\x1b[2Jx\nforged line", tensor_type::u8, {16}}};
    const auto beginning = make_safetensors(tensors, tensor_metadata{{"k\x1b[1m", "v\xc2\x9b"}});
    EXPECT_TRUE(beginning.ok());
    std::ofstream(path(".safetensors"), std::ios::binary) << *beginning << std::string(16, 'x');
    return path(".safetensors");
  }
  // Its text, once nothing in it is found that moves a terminal's cursor or forges a line.
  static ended_program harmless(const words& arguments) {
    const ended_program ended = run(arguments);
    for (const std::string& text : {ended.out, ended.err}) {
      EXPECT_TRUE(is_harmless(text)) << arguments.front() << ": " << printable_text(text);
      EXPECT_FALSE(contains(text, "\npenstock: all is well")) << arguments.front() << ": " << text;
      EXPECT_FALSE(contains(text, "\nforged line")) << arguments.front() << ": " << text;
    }
    return ended;
  }
  scratch_directory directory_;
};

TEST_F(hostile_names, of_files_reach_no_output_of_any_command) {
  const std::string data = directory_.make_file(hostile, 100000), same = directory_.path() + "/same", missing = path("none");
  const std::string tensors = model(), list = path(".sums");
  std::filesystem::copy_file(data, same);
  const words one{"--device", "host:0"};
  const auto with = [](words arguments, const words& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  for (const std::string& file : {data, missing}) {
    for (const char* name : {"check", "read", "load", "inspect"}) {
      const auto ended = harmless(with({name, file}, std::string(name) == "inspect" ? words{} : one));
      EXPECT_TRUE(contains(ended.out + ended.err, "/a?]0;owned??penstock: all is well??2J??")) << name << ended.out << ended.err;
      harmless(with({name, file, "--json"}, std::string(name) == "inspect" ? words{} : one));
    }
    harmless({"io", "-f", file, "-d", "host:0"});
    harmless({"io", file});
    harmless({"io", "-f", file, "-d", file});
    harmless({"verify", "--compare", file, same});
    harmless({"verify", "--compare", same, file, "--json"});
    harmless({"verify", "-f", file, "-d", "host:0"});
    harmless({"verify", "-c", file});
    harmless({"verify", file, "--json"});
    harmless({"cp", "-v", file, path("copy")});
    harmless({"cp", "-v", "--json", file, directory_.path() + "/nowhere/" + hostile});
    harmless({"convert", file, path(".pt")});
    harmless({"check", "--cufile-json", file});
    harmless({"check", "--root", file});
    harmless({"bench", "--report", path(".html"), "--from", file});
    harmless({"run", "--", file});
  }
  harmless({"bench", "--quick", "--rows", "start", "--file", data, "--device", "host:0"});
  harmless({"load", tensors, "--device", "host:0"});
  harmless({"convert", tensors, path(".pt")});
  EXPECT_TRUE(contains(harmless({"inspect", tensors}).out, "w?[2Jx?forged line")) << "names of tensors";
  EXPECT_EQ(nlohmann::json::parse(harmless({"inspect", tensors, "--json"}).out)[0]["tensors"][0]["name"], "w\x1b[2Jx\nforged line");
  for (const char* name : {"check", "read", "load"}) harmless({name, data, "--device", hostile});
  harmless({"write", path("new"), "--size", "4096", "--device", "host:0"});
  harmless({"write", path("new"), "--size", "4096"});
  harmless({"verify", data, "-a", hostile});
  harmless({hostile});
  harmless({"read", data, hostile});
  harmless({"read", data, std::string("--") + hostile});
  harmless({"help", hostile});
  harmless({"pipe-bench", "--url", hostile});
  std::filesystem::create_directory(path(".dir"));
  EXPECT_EQ(harmless({"demo", "--dir", path(".dir"), "--size", "16MiB", "--device", "host:0"}).exit_code, 0);
  harmless({"demo", "--dir", path(".none"), "--size", "1MiB"});
  harmless({"stats", "--serve", hostile});
}

TEST_F(hostile_names, in_the_environment_reach_no_output) {
  const std::string data = directory_.make_file("data", 10);
  ::setenv("PENSTOCK_CACHE", hostile, 1);
  const auto ended = harmless({"read", data});
  ::unsetenv("PENSTOCK_CACHE");
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, "PENSTOCK_CACHE")) << ended.err;
}

TEST_F(hostile_names, stay_exact_in_lists_of_checksums_and_in_json) {
  const std::string data = directory_.make_file(hostile, 1000), list = directory_.path() + "/list";
  const auto printed = run({"verify", data});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_TRUE(printed.out.starts_with("\\")) << "as sha256sum says that a name is escaped";
  EXPECT_TRUE(contains(printed.out, "owned\x07\\npenstock")) << printed.out;
  EXPECT_EQ(std::count(printed.out.begin(), printed.out.end(), '\n'), 1);
  std::ofstream(list, std::ios::binary) << printed.out;
  const auto checked = harmless({"verify", "-c", list});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_TRUE(checked.out.ends_with(": OK\n")) << checked.out;
  if (std::system("sha256sum --version >/dev/null 2>&1") == 0) {
    EXPECT_EQ(std::system(("sha256sum -c --status '" + list + "'").c_str()), 0);
  }
  const auto utf8 = directory_.make_file("b\x1b\n\x7f\xc2\x9b", 10);
  EXPECT_EQ(nlohmann::json::parse(run({"verify", utf8, "--json"}).out).at("files")[0].at("file"), utf8);
}

TEST_F(hostile_names, reach_no_terminal_from_a_list_of_checksums) {
  const std::string data = directory_.make_file(hostile, 1000);
  for (const words& each : {words{"verify", data}, words{"read", "--device", "host", data}, words{"inspect", model()}}) {
    const std::string shown = run_in_terminal(each);
    for (const char* part : {"\x1b]", "\x07", "\x1b[2J", "\xc2\x9b", "\xff", "\x7f"})
      EXPECT_FALSE(contains(shown, part)) << printable_text(shown);
  }
}

#if !defined(__SANITIZE_THREAD__)  // which does not support new threads in a forked child
TEST_F(hostile_names, of_other_processes_reach_no_output) {
  const auto data = directory_.make_file(hostile, 65536);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t watched = ::fork();
  if (watched == 0) {
    std::ofstream("/proc/self/comm") << "x\x1b[2J\x7f";
    auto* own = new engine(host_engine());
    auto file = *own->open(data);
    char memory[4096];
    (void)file.read(memory, sizeof memory, 0);
    const bool told = ::write(ends[1], "x", 1) == 1;
    while (told) ::pause();
    ::_exit(1);
  }
  char ready = 0;
  EXPECT_EQ(::read(ends[0], &ready, 1), 1);
  const std::string pid = std::to_string(watched);
  for (const words& each : std::vector<words>{{"stats"},
                                              {"stats", "-p", pid, "-l", "3"},
                                              {"top", "--once", "--interval", "0.05"},
                                              {"stats", "--prometheus"},
                                              {"stats", "--json"}})
    harmless(each);
  ::kill(watched, SIGKILL);
  ::waitpid(watched, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}
#endif

TEST(say, makes_text_printable_and_leaves_ours_as_it_is) {
  EXPECT_EQ(cli::in_words("{}: {:>3} {}\n", std::string("a\nb\x1b"), 7, cli::as_is{"\x1b[31mred\n"}), "a?b?:   7 \x1b[31mred\n\n");
}

TEST(say, breaks_lines_between_words_with_what_follows_indented) {
  EXPECT_EQ(cli::wrapped("  ok  one two three\nshort\n", 12, 4), "  ok  one\n      two\n      three\nshort\n");
  EXPECT_EQ(cli::wrapped("one two three", 0, 4), "one two three");
  EXPECT_EQ(cli::wrapped("a-word-that-is-too-long b", 8, 2), "a-word-that-is-too-long\n  b");
  EXPECT_EQ(cli::wrapped("\x1b[31mred\x1b[0m rose", 8, 2), "\x1b[31mred\x1b[0m rose");
  EXPECT_EQ(cli::wrapped("ää öö üü", 8, 2), "ää öö üü");
}

}  // namespace
}  // namespace penstock::cli_test
