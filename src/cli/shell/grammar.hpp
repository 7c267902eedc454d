// What the commands and their options are, read from what they declare to CLI11; and the pages that are made from it: help, manual pages,
// the reference in docs/, completions for shells. Hidden commands and options are left out. One thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/shell/examples.hpp"
#include "penstock/status.hpp"

namespace penstock::cli {

struct option_grammar {
  std::vector<std::string> names;    // "-q", "--quiet"; empty for what has no name but its place
  std::string usage;                 // "FILE... TO", of what has its place only, where its value and repeats do not say it all
  std::string value;                 // "SIZE", "FILE", or "COMMAND" for what has its place only; empty where none is taken
  bool value_may_lack = false;       // --json [FILE]
  std::vector<std::string> choices;  // all words that it takes, where it takes no others
  std::string description;
  bool required = false;
  bool repeats = false;
  [[nodiscard]] bool takes_file() const { return value == "FILE" || value == "DIR"; }
};

struct command_grammar {
  std::string name;   // empty for the program itself
  std::string group;  // of commands for one purpose
  std::string description, footer;
  std::vector<option_grammar> options;  // with a name
  std::vector<option_grammar> places;   // FILE
  bool runs_program = false;            // what follows is another program's
  std::vector<example> examples;
};

// The program itself, then its commands in the order of `penstock help`.
std::vector<command_grammar> grammar_of(const CLI::App& app);

// The page in roff of one of them: penstock(1), or penstock-read(1).
std::string manual_page(const std::vector<command_grammar>& grammar, const command_grammar& command);

// What `penstock help` prints of one of them, in lines as wide as the terminal, or of 80 columns.
std::string help_page(const std::vector<command_grammar>& grammar, const command_grammar& command);

// "penstock read [OPTIONS] FILE...".
std::string usage_of(const command_grammar& command);
// "--path automatic|posix", "-q, --quiet", "FILE...".
std::string usage_of(const option_grammar& option);

// docs/reference/commands.md: all commands, then usage, options and examples of each.
std::string reference_page(const std::vector<command_grammar>& grammar);

inline constexpr const char* shells[] = {"bash", "zsh", "fish"};
std::string completion(const std::vector<command_grammar>& grammar, const std::string& shell);

// Writes all of it below the folder, as it is installed below share/. Errors: what could not be made or written.
status write_pages(const std::vector<command_grammar>& grammar, const std::string& folder);

}  // namespace penstock::cli
