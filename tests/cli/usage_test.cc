// What the command says of a command line that it does not understand, and where it explains itself.
#include <gtest/gtest.h>

#include "cli/program.hpp"
#include "penstock/version.hpp"

namespace penstock::cli_test {
namespace {

std::string refusal(const std::vector<std::string>& arguments) {
  const ended_program ended = run(arguments);
  EXPECT_EQ(ended.exit_code, 2) << ended.out;
  EXPECT_EQ(ended.out, "");
  return ended.err.substr(0, ended.err.find('\n'));
}

TEST(usage, an_unknown_command_is_named_with_the_one_that_was_meant) {
  EXPECT_EQ(refusal({"raed", "x", "--verify"}), "penstock: unknown command \"raed\"; did you mean read?");
  EXPECT_EQ(refusal({"bensh"}), "penstock: unknown command \"bensh\"; did you mean bench?");
  EXPECT_EQ(refusal({"dev"}), "penstock: unknown command \"dev\"; did you mean devices?");
  EXPECT_EQ(refusal({"frobnicate"}), "penstock: unknown command \"frobnicate\"");
  EXPECT_EQ(refusal({"help", "chekc"}), "penstock: unknown command \"chekc\"; did you mean check?");
}

TEST(usage, an_unknown_option_is_named_with_the_one_that_was_meant) {
  EXPECT_EQ(refusal({"read", "x", "--verfy"}), "penstock: read: unknown option --verfy; did you mean --verify?");
  EXPECT_EQ(refusal({"read", "--verfy"}), "penstock: read: unknown option --verfy; did you mean --verify?");
  EXPECT_EQ(refusal({"read", "x", "--ofset=4k"}), "penstock: read: unknown option --ofset; did you mean --offset?");
  EXPECT_EQ(refusal({"read", "x", "--no-such-option"}), "penstock: read: unknown option --no-such-option");
  EXPECT_EQ(refusal({"read", "x", "-x"}), "penstock: read: unknown option -x");
  EXPECT_EQ(refusal({"run", "--no-audti", "true", "-l"}), "penstock: run: unknown option --no-audti; did you mean --no-audit?");
  EXPECT_EQ(refusal({"--versoin"}), "penstock: unknown option --versoin; did you mean --version?");
  EXPECT_EQ(refusal({"--verify", "read", "x"}), "penstock: --verify goes behind the command: penstock read --verify");
}

TEST(usage, an_unknown_word_of_an_option_is_named_with_the_one_that_was_meant) {
  EXPECT_EQ(refusal({"read", "x", "--path", "stagd"}),
            "penstock: read: --path: \"stagd\" is none of automatic, posix, staged, mapped, direct; did you mean staged?");
  EXPECT_EQ(refusal({"read", "x", "--prefer", "nothing"}), "penstock: read: --prefer: \"nothing\" is none of automatic, speed, cpu");
}

TEST(usage, other_mistakes_are_told_in_a_line_that_names_the_command) {
  EXPECT_EQ(refusal({"read"}), "penstock: read: FILE is required");
  EXPECT_EQ(refusal({"devices", "all"}), "penstock: devices: unexpected word \"all\"");
  EXPECT_EQ(refusal({"read", "x", "--length", "1.5X"}),
            "penstock: read: --length: \"1.5X\" is not a size: units are B, k, KiB, KB, M, MiB, MB, G, GiB, GB, T, TiB, TB");
  EXPECT_TRUE(contains(run({"read"}).err, "Run `penstock help read` for its options.")) << run({"read"}).err;
}

TEST(usage, nothing_at_all_gets_the_list_of_commands) {
  const ended_program ended = run({});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_EQ(ended.out, "");
  for (const char* part : {"pipe-bench", "penstock: a command is required"}) EXPECT_TRUE(contains(ended.err, part)) << ended.err;
}

TEST(usage, version_by_its_short_option) {
  EXPECT_EQ(run({"-V"}).out, "penstock " + std::string(version()) + "\n");
  EXPECT_EQ(run({"-V"}).exit_code, 0);
}

TEST(usage, help_is_a_command_too) {
  EXPECT_EQ(run({"help"}).out, run({"--help"}).out);
  EXPECT_EQ(run({"help"}).exit_code, 0);
  for (const std::string name : {"demo", "read", "write", "check", "devices", "bench", "pipe-bench", "run", "help"}) {
    const ended_program ended = run({"help", name});
    EXPECT_EQ(ended.exit_code, 0) << name;
    EXPECT_TRUE(contains(ended.out, "Usage: penstock " + name)) << ended.out;
    EXPECT_EQ(ended.out, run({name, "--help"}).out);
    EXPECT_EQ(ended.err, "");
  }
}

}  // namespace
}  // namespace penstock::cli_test
