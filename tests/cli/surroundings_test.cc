// Commands in unusual environments: each works, or fails with a message. None crashes, hangs or is killed by a signal. A new environment or
// command takes one line.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cli/program.hpp"

namespace penstock::cli_test::surroundings_tests {
namespace {

struct surrounding {
  const char* name;
  const char* shell;  // run before the command
};

const std::vector<surrounding> surroundings{
    {"no_file_may_be_made", "ulimit -f 0"},
    {"small_files_only", "ulimit -f 100"},
    {"few_descriptors", "ulimit -n 13"},
    {"some_descriptors", "ulimit -n 20"},
    {"no_core_dumps", "ulimit -c 0"},
    {"little_address_space", "ulimit -v 200000"},
    {"umask_of_777", "umask 777"},
    {"no_home", "unset HOME"},
    {"home_is_nowhere", "export HOME=/nonexistent"},
    {"temporary_folder_is_nowhere", "export TMPDIR=/nonexistent"},
    {"no_standard_input", "exec <&-"},
    {"no_path", "PATH="},
    {"odd_language", "export LC_ALL=xx_XX.broken LANG=$(printf '\\\\377')"},
};

const std::vector<std::vector<std::string>> commands{
    {"read", "data"},
    {"read", "data", "--device", "host"},
    {"verify", "data"},
    {"cp", "--no-clone", "data", "copy"},
    {"cp", "-p", "data", "copy-p"},
    {"write", "made", "--size", "1MiB", "--force"},
    {"io", "-f", "io", "-w", "1", "-s", "1M", "-i", "64K", "-x", "1", "-I", "1"},
    {"inspect", "data"},
    {"cp", "data", "name\nof two lines \xff\xfe"},
    {"read", std::string(5000, 'x')},
    {"read", "none/" + std::string(300, 'y')},
};

std::string bytes_of(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

struct answer {
  int exit_code = -1;  // 128 + signal if a signal ended it
  std::string text;    // of both streams, by a pipe: a limit on files does not hold for it
};

answer run_by_shell(const std::string& script) {
  FILE* const out = ::popen((script + " 2>&1").c_str(), "r");
  if (out == nullptr) return {};
  answer made;
  std::array<char, 4096> room{};
  for (std::size_t got = 0; (got = std::fread(room.data(), 1, room.size(), out)) > 0;) made.text.append(room.data(), got);
  const int ended = ::pclose(out);
  made.exit_code = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
  return made;
}

class odd_surroundings : public ::testing::TestWithParam<surrounding> {};

TEST_P(odd_surroundings, leave_each_command_with_an_answer) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (std::string_view(GetParam().shell).starts_with("ulimit"))
    GTEST_SKIP() << "a sanitizer needs memory, descriptors and files of its own";
#endif
  const scratch_directory directory;
  const auto data = directory.make_file("data", 3 * mib + 5);
  const auto content = bytes_of(data);
  for (const auto& words : commands) {
    SCOPED_TRACE(words.front() + " " + words[1].substr(0, 40));
    std::string script = "cd '" + directory.path() + "' && " + GetParam().shell + " && exec '" + PENSTOCK_CLI_PATH + "'";
    for (const auto& word : words) script += " '" + word + "'";
    const auto ended = run_by_shell(script);
    EXPECT_TRUE(ended.exit_code == 0 || ended.exit_code == 1) << ended.exit_code << ": " << ended.text;
    EXPECT_TRUE(ended.exit_code == 0 || contains(ended.text, "penstock: ")) << ended.text;
    EXPECT_TRUE(bytes_of(data) == content) << "the source has changed";
    const bool has_copied = ended.exit_code == 0 && words.front() == "cp" && ::geteuid() == 0;
    EXPECT_TRUE(!has_copied || bytes_of(directory.path() + "/" + words.back()) == content) << "the copy has other bytes";
  }
}

INSTANTIATE_TEST_SUITE_P(each, odd_surroundings, ::testing::ValuesIn(surroundings), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace penstock::cli_test::surroundings_tests
