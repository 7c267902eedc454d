// The command's messages for invalid command lines, and its help.
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

TEST(usage, an_unknown_command_is_one_also_when_help_or_the_version_is_asked_for) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"reed", "--help"}, {"--help", "reed"}, {"reed", "-h"}, {"reed", "--version"}, {"help", "reed"}}) {
    const auto ended = run(words);
    EXPECT_EQ(ended.exit_code, 2) << words.front() << " " << words.back();
    EXPECT_TRUE(contains(ended.err, "unknown command \"reed\"; did you mean read?")) << ended.err;
    EXPECT_EQ(ended.out, "");
  }
}

TEST(usage, the_old_name_of_a_cache_use_is_accepted_with_a_warning) {
  for (const char* command : {"read", "load"}) {
    const auto ended = run({command, "--cache", "keep", "/missing"});
    EXPECT_TRUE(ended.err.starts_with("penstock: --cache keep is deprecated: use --cache fill\n")) << ended.err;
    EXPECT_TRUE(contains(ended.err, "/missing: No such file")) << ended.err;
    EXPECT_FALSE(contains(run({command, "--cache", "fill", "/missing"}).err, "deprecated"));
    EXPECT_TRUE(contains(refusal({command, "--cache", "kept", "/missing"}), "\"kept\" is not one of auto, fill, bypass"));
  }
}

TEST(usage, cp_without_a_target_says_what_is_missing) {
  const auto ended = run({"cp", "one"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_TRUE(contains(ended.err, "penstock: cp: one has no target: add one, as in penstock cp FILE TO\n")) << ended.err;
  EXPECT_TRUE(contains(run({"help", "cp"}).out, "FILE... TO")) << run({"help", "cp"}).out;
}

TEST(usage, automatic_and_auto_are_one_word) {
  const scratch_directory directory;
  const auto file = directory.make_file("data", 1000);
  for (const std::string word : {"auto", "automatic"}) {
    for (const char* option : {"--path", "--prefer", "--cache"})
      EXPECT_EQ(run({"read", file, "--device", "host", option, word}).exit_code, 0) << option << " " << word;
    for (const char* variable : {"PENSTOCK_PATH", "PENSTOCK_PREFER", "PENSTOCK_CACHE"}) {
      const scoped_variable set(variable, word);
      EXPECT_EQ(run({"read", file, "--device", "host"}).exit_code, 0) << variable << " " << word;
    }
  }
}

TEST(usage, reads_past_the_end_of_a_file_say_so) {
  const scratch_directory directory;
  const auto file = directory.make_file("data", 1000);
  EXPECT_TRUE(
      contains(run({"read", file, "--device", "host", "--offset", "2000"}).err, "data is only 1000 bytes long: there is nothing to read"));
  EXPECT_TRUE(contains(run({"read", file, "--device", "host", "--length", "2000"}).err, "1000 of the 2000 bytes exist"));
  EXPECT_EQ(run({"read", file, "--device", "host", "--length", "1000"}).err, "");
}

TEST(usage, all_commands_that_print_figures_have_json_and_quiet) {
  for (const char* name : {"check", "devices", "demo", "read", "write", "cp", "verify", "load", "inspect", "convert", "bench", "io",
                           "pipe-bench", "stats", "top"}) {
    const auto help = run({"help", name}).out;
    EXPECT_TRUE(contains(help, "--json") && contains(help, "-q, --quiet")) << name;
  }
}

TEST(usage, an_unknown_option_is_named_with_the_one_that_was_meant) {
  EXPECT_EQ(refusal({"read", "x", "--verfy"}), "penstock: read: unknown option --verfy; did you mean --verify?");
  EXPECT_EQ(refusal({"read", "--verfy"}), "penstock: read: unknown option --verfy; did you mean --verify?");
  EXPECT_EQ(refusal({"read", "x", "--ofset=4k"}), "penstock: read: unknown option --ofset; did you mean --offset?");
  EXPECT_EQ(refusal({"read", "x", "--no-such-option"}), "penstock: read: unknown option --no-such-option");
  EXPECT_EQ(refusal({"read", "x", "-x"}), "penstock: read: unknown option -x");
  EXPECT_EQ(refusal({"run", "--no-audti", "true", "-l"}), "penstock: run: unknown option --no-audti; did you mean --no-audit?");
  EXPECT_EQ(refusal({"--versoin"}), "penstock: unknown option --versoin; did you mean --version?");
  EXPECT_EQ(refusal({"--verify", "read", "x"}), "penstock: --verify must follow the command: penstock read --verify");
}

TEST(usage, an_unknown_word_of_an_option_is_named_with_the_one_that_was_meant) {
  EXPECT_EQ(refusal({"read", "x", "--path", "stagd"}),
            "penstock: read: --path: \"stagd\" is not one of automatic, posix, staged, mapped, direct, dma_buf; did you mean staged?");
  EXPECT_EQ(refusal({"read", "x", "--prefer", "nothing"}), "penstock: read: --prefer: \"nothing\" is not one of automatic, speed, cpu");
}

TEST(usage, other_mistakes_are_told_in_a_line_that_names_the_command) {
  EXPECT_EQ(refusal({"read"}), "penstock: read: FILE is required");
  EXPECT_EQ(refusal({"devices", "all"}), "penstock: devices: unexpected argument \"all\"");
  EXPECT_EQ(refusal({"read", "x", "--length", "1.5X"}),
            "penstock: read: --length: \"1.5X\" is not a size: valid units are B, k, KiB, KB, M, MiB, MB, G, GiB, GB, T, TiB, TB");
  EXPECT_TRUE(contains(run({"read"}).err, "Run `penstock help read` for its options.")) << run({"read"}).err;
}

TEST(usage, numbers_are_told_with_a_range_that_a_person_would_name) {
  EXPECT_EQ(refusal({"read", "x", "--repeat", "0"}), "penstock: read: --repeat: \"0\" is not an integer greater than or equal to 1");
  EXPECT_EQ(refusal({"load", "x", "--repeat", "many"}), "penstock: load: --repeat: \"many\" is not an integer greater than or equal to 1");
  EXPECT_EQ(refusal({"bench", "--repeats", "99999999999999999999"}), "penstock: bench: --repeats: \"99999999999999999999\" is too large");
  EXPECT_EQ(refusal({"load", "x", "--links", "9"}), "penstock: load: --links: \"9\" is not an integer from 1 to 8");
  EXPECT_EQ(refusal({"top", "--interval", "0"}), "penstock: top: --interval: \"0\" is not a number of seconds from 0.05 to 3600");
  EXPECT_EQ(refusal({"read", "x", "--gpu", "x"}), "penstock: read: --gpu: \"x\" is not an integer from 0 to 65535");
  EXPECT_EQ(refusal({"stats", "-p"}), "penstock: stats: --pid must be followed by PID");
}

TEST(usage, help_is_free_of_what_only_the_parser_means) {
  const std::string names = run({"help"}).out;
  for (const char* group : {"Get started:", "Read and write files:", "Models:", "Measure:", "Watch running processes:", "Shell:"})
    EXPECT_TRUE(contains(names, std::string("\n") + group + "\n")) << names;
  for (const char* name : {"read", "load", "io", "verify", "top", "stats", "bench", "pipe-bench", "check", "run"}) {
    const std::string page = run({"help", name}).out;
    for (const char* part : {"TEXT", "UINT", "INT:", "FLOAT", "POSITIVE", "Excludes", "Needs", "REQUIRED", " in ["})
      EXPECT_FALSE(contains(page, part)) << name << ": " << part << "\n" << page;
    for (std::size_t at = 0; at < page.size(); at = page.find('\n', at) + 1)
      EXPECT_LE(page.find('\n', at) - at, 80U) << page.substr(at, 90);
  }
  EXPECT_TRUE(contains(run({"help", "read"}).out, "--gpu N")) << run({"help", "read"}).out;
  EXPECT_TRUE(contains(run({"help", "read"}).out, "--prefer automatic|speed|cpu")) << run({"help", "read"}).out;
  EXPECT_TRUE(contains(run({"help", "verify"}).out, "(only with -f)"));
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
