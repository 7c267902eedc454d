// The examples in help texts, manual pages and docs/reference/commands.md run, and their options exist.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "cli/program.hpp"
#include "cli/shell/examples.cc"  // NOLINT(bugprone-suspicious-include)

namespace penstock::cli_test {
namespace {

namespace fs = std::filesystem;
using cli::all_examples;
using cli::example;

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> commands_in_help() {
  std::set<std::string> names;
  const std::string help = run({"help"}).out;
  const std::regex name("\n  ([a-z-]+)  ");
  for (auto at = std::sregex_iterator(help.begin(), help.end(), name); at != std::sregex_iterator(); ++at) {
    if ((*at)[1].str().front() != '-') names.insert((*at)[1]);
  }
  return names;
}

void write_model(const std::string& path) {
  const std::string header = R"({"weight":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  std::ofstream(path, std::ios::binary) << bytes << header << std::string(32, '\1');
}

TEST(examples, every_command_has_two_or_more_and_its_help_and_manual_page_show_them) {
  const auto names = commands_in_help();
  EXPECT_GT(names.size(), 15U);
  std::map<std::string, int> counts;
  for (const example& each : all_examples()) ++counts[std::string(each.command)];
  for (const std::string& name : names) {
    EXPECT_GE(counts[name], 2) << name;
    EXPECT_TRUE(contains(run({"help", name}).out, "\nExamples:\n  # ")) << name;
    EXPECT_TRUE(contains(run({"help", "--man", name}).out, "\n.SH EXAMPLES\n")) << name;
  }
}

TEST(examples, have_options_that_the_command_has) {
  const std::regex option("(^| )(--?[a-zA-Z][a-z-]*)");
  for (const example& each : all_examples()) {
    if (each.command.empty()) continue;
    const std::string line(each.line), name(each.command);
    EXPECT_TRUE(contains(line, "penstock " + name)) << line;
    EXPECT_LE(line.size() + 2, 80U) << line;
    const std::string own = line.substr(0, line.find(" -- "));
    const std::string help = run({"help", name}).out;
    for (auto at = std::sregex_iterator(own.begin(), own.end(), option); at != std::sregex_iterator(); ++at) {
      const std::string word = (*at)[2];
      EXPECT_TRUE(contains(help, " " + word + " ") || contains(help, " " + word + ",") || contains(help, " " + word + "\n")) << line;
    }
  }
}

TEST(examples, run_one_after_the_other) {
  const scratch_directory directory;
  fs::copy_file(directory.make_file("data", 2 * mib), directory.path() + "/data.bin");
  write_model(directory.path() + "/model.safetensors");
  std::ofstream(directory.path() + "/train.py") << "print('trained')\n";
  // The others measure for seconds, or look at the whole machine, as other tests do.
  const std::set<std::string_view> run_here{"devices", "read",    "write", "cp",         "verify", "load",
                                            "inspect", "convert", "io",    "completion", "help"};
  const std::string folder = fs::path(PENSTOCK_CLI_PATH).parent_path().string();
  std::string script = "set -e; cd '" + directory.path() + "'; PATH='" + folder + "':$PATH\n";
  for (const example& each : all_examples()) {
    if (!each.runs || !run_here.contains(each.command) || contains(std::string(each.line), "--sweep")) continue;
    script += std::string(each.line) + " || { echo \"FAILED: " + std::string(each.line) + "\"; exit 1; }\n";
  }
  std::ofstream(directory.path() + "/script") << script;
  const std::string command = "bash '" + directory.path() + "/script' > '" + directory.path() + "/out' 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << contents_of(directory.path() + "/out");
}

TEST(reference, is_the_page_of_the_documentation) {
  const auto printed = run({"help", "--markdown"});
  EXPECT_EQ(printed.exit_code, 0);
  const std::string page = contents_of(std::string(PENSTOCK_MACHINES_PATH) + "/../../../docs/reference/commands.md");
  EXPECT_TRUE(page == printed.out) << "run: penstock help --markdown > docs/reference/commands.md";
  for (const std::string& name : commands_in_help()) EXPECT_TRUE(contains(page, "\n## penstock " + name + "\n")) << name;
}

}  // namespace
}  // namespace penstock::cli_test
