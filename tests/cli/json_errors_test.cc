// Every command with --json prints one document with the error when it fails, whatever fails. A new command takes one line.
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "cli/program.hpp"

namespace penstock::cli_test {
namespace {

using nlohmann::json;

struct failing_command {
  const char* words;
  int exit_code;
};

constexpr std::array failing{failing_command{"check nothere", 1},
                             failing_command{"check --cufile-json nothere", 1},
                             failing_command{"check src --device nosuch:0", 1},
                             failing_command{"check --nosuchoption", 2},
                             failing_command{"devices nosuchword", 2},
                             failing_command{"demo --device nosuch:0", 1},
                             failing_command{"demo --dir nothere --size 1MiB", 1},
                             failing_command{"read nothere", 1},
                             failing_command{"read", 2},
                             failing_command{"read src --device nosuch:0", 1},
                             failing_command{"read src --path nosuch", 2},
                             failing_command{"write src", 1},
                             failing_command{"write new --device nosuch:0", 1},
                             failing_command{"write nothere/new --size 1MiB --device host", 1},
                             failing_command{"cp nothere to", 1},
                             failing_command{"cp src", 2},
                             failing_command{"cp src src nothere/", 1},
                             failing_command{"verify nothere", 1},
                             failing_command{"verify -c nothere", 1},
                             failing_command{"verify -c src", 1},
                             failing_command{"verify --compare src nothere", 1},
                             failing_command{"verify --compare nothere src", 1},
                             failing_command{"verify -f nothere -d host:0", 1},
                             failing_command{"verify -f src -d nosuch:0", 1},
                             failing_command{"verify", 2},
                             failing_command{"load nothere", 1},
                             failing_command{"load src --device nosuch:0", 1},
                             failing_command{"inspect nothere", 1},
                             failing_command{"inspect src", 1},
                             failing_command{"convert src new.safetensors", 1},
                             failing_command{"convert nothere new.safetensors", 1},
                             failing_command{"bench --rows nosuch", 2},
                             failing_command{"bench --device nosuch:0", 1},
                             failing_command{"bench --file src", 1},
                             failing_command{"io -f nothere -d host:0", 1},
                             failing_command{"io -f src -d nosuch:0", 1},
                             failing_command{"io", 2},
                             failing_command{"pipe-bench --from nosuch:0", 1},
                             failing_command{"pipe-bench --sizes 0", 2},
                             failing_command{"stats -p 1", 1},
                             failing_command{"top --interval 0", 2},
                             failing_command{"nosuchcommand", 2}};

bool has_error(const json& document) {
  if (!document.is_structured()) return false;
  for (const auto& [key, value] : document.items()) {
    const bool is_error = key == "error" && value.is_string() && !value.get<std::string>().empty();
    if (is_error || (key == "errors" && !value.empty()) || has_error(value)) return true;
  }
  return false;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream text(line);
  return {std::istream_iterator<std::string>(text), {}};
}

TEST(json_errors, are_in_the_one_document_that_each_failing_command_prints) {
  const scratch_directory directory;
  for (const failing_command& each : failing) {
    auto words = words_of(each.words);
    for (std::string& word : words) {
      if (word == "src") word = directory.make_file("src", 100000);
      if (word.starts_with("new") || word.starts_with("nothere") || word == "to") word.insert(0, directory.path() + "/");
    }
    words.emplace_back("--json");
    const auto ended = run(words);
    EXPECT_EQ(ended.exit_code, each.exit_code) << each.words << ": " << ended.err;
    const auto document = json::parse(ended.out, nullptr, false);
    EXPECT_FALSE(document.is_discarded()) << each.words << ": " << ended.out;
    EXPECT_TRUE(has_error(document)) << each.words << ": " << ended.out;
  }
}

TEST(json_lists, are_documents_too) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"bench", "--list", "--json"}, {"check", "--findings", "--json"}}) {
    const auto ended = run(words);
    EXPECT_EQ(ended.exit_code, 0) << words.front();
    const auto document = json::parse(ended.out, nullptr, false);
    EXPECT_TRUE(document.is_array() && document.size() > 10) << words.front() << ": " << ended.out.substr(0, 200);
  }
}

}  // namespace
}  // namespace penstock::cli_test
