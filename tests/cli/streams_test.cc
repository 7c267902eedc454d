// Standard streams that are closed, full or broken: every command ends with the exit code of its work, and no output goes into a file of
// the user.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "cli/program.hpp"

namespace penstock::cli_test {
namespace {

struct command_case {
  const char* words;
  int exit_code;
  bool prints;  // on standard output
};

// Commands that work and commands that fail, of each kind.
const std::array commands{
    command_case{"cp src copy", 0, true},
    command_case{"cp -q src copy", 0, false},
    command_case{"cp nothere copy2", 1, false},
    command_case{"cp -q -v src copy3", 0, true},
    command_case{"verify nothere", 1, false},
    command_case{"verify src", 0, true},
    command_case{"verify --compare src nothere", 1, false},
    command_case{"verify -c src", 1, false},
    command_case{"nosuchcommand", 2, false},
    command_case{"read src --nosuchoption", 2, false},
    command_case{"--help", 0, true},
    command_case{"--version", 0, true},
    command_case{"help read", 0, true},
    command_case{"read src --device host", 0, true},
    command_case{"read src --device nosuchdevice", 1, false},
    command_case{"read nothere --json", 1, true},
    command_case{"write made --size 1MiB --device host", 0, true},
    command_case{"write src --size 1MiB --device host", 1, false},
    command_case{"io -d host:0 -f io.bin -s 4M -i 1M -x 0 -I 1", 0, true},
    command_case{"io -d host:0 -f nothere -s 4M -i 1M -x 0 -I 0", 1, false},
    command_case{"inspect src", 1, false},
    command_case{"load nothere", 1, true},
    command_case{"convert src x.safetensors", 1, false},
    command_case{"check nothere", 1, false},
    command_case{"devices", 0, true},
    command_case{"bench --list", 0, true},
    command_case{"bench --rows nosuchrow", 2, false},
    command_case{"stats -p 1", 1, false},
    command_case{"run -- nosuchprogram", 127, false},
};

class streams : public ::testing::Test {
 protected:
  void SetUp() override { (void)directory_.make_file("src", 5000000); }
  // As a shell does it; -1: a signal ended the command.
  [[nodiscard]] int run_shell(const std::string& words, const std::string& redirections) const {
    const std::string script = "cd " + directory_.path() + " && rm -f copy copy3 made io.bin && exec " PENSTOCK_CLI_PATH " " + words + " " +
                               redirections + " 3>&- 4>&-";
    const int state = std::system(("( ulimit -c 0; " + script + " ) 2>/dev/null").c_str());
    return WIFEXITED(state) && WEXITSTATUS(state) < 128 ? WEXITSTATUS(state) : -1;
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream file(directory_.path() + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  scratch_directory directory_;
};

TEST_F(streams, that_take_no_errors_change_no_exit_code) {
  for (const command_case& each : commands) {
    for (const char* redirections : {"</dev/null >/dev/null 2>&-", "</dev/null >/dev/null 2>/dev/full"}) {
      EXPECT_EQ(run_shell(each.words, redirections), each.exit_code) << each.words << " " << redirections;
    }
  }
}

TEST_F(streams, that_take_no_output_fail_what_prints_and_say_which_it_is) {
  for (const command_case& each : commands) {
    const bool fails = each.prints;
    EXPECT_EQ(run_shell(each.words, "</dev/null >/dev/full 2>err"), fails ? 1 : each.exit_code) << each.words;
    const bool is_named = contains(content("err"), "penstock: cannot write to standard output: No space left on device\n");
    EXPECT_EQ(is_named, fails) << each.words << ": " << content("err");
  }
}

TEST_F(streams, that_are_closed_are_not_taken_by_a_file_that_the_command_writes) {
  ASSERT_EQ(run_shell("write right --size 1MiB --seed 7 --device host --force", ">/dev/null"), 0);
  EXPECT_EQ(run_shell("write wrong --size 1MiB --seed 7 --device host --force --verify", "<&- >&- 2>&-"), 1);  // its line is lost
  EXPECT_EQ(content("wrong"), content("right"));
  EXPECT_EQ(run_shell("cp -q src copied", "<&- >&- 2>&-"), 0);
  EXPECT_EQ(content("copied"), content("src"));
}

TEST_F(streams, of_a_pipe_that_nobody_reads_change_no_exit_code) {
  const std::string penstock = std::string(PENSTOCK_CLI_PATH) + " ";
  // The pipe has no reader once `true` has ended, which the command may see or not: either way it ends with its own exit code.
  const std::string script = "{ " + penstock + "cp nothere copy; echo $? >code; } 2>&1 >/dev/null | true";
  ASSERT_EQ(std::system(("cd " + directory_.path() + " && " + script).c_str()), 0);
  EXPECT_EQ(content("code"), "1\n");
}

}  // namespace
}  // namespace penstock::cli_test
