// The grammar of commands and options, read from their CLI11 declarations, and the pages generated from it: help, manual pages, the
// reference in docs/ and shell completions. Hidden commands and options are omitted. One thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/shell/examples.hpp"
#include "penstock/status.hpp"

namespace penstock::cli {

struct option_grammar {
  std::vector<std::string> names;    // "-q", "--quiet"; empty for positional arguments
  std::string usage;                 // "FILE... TO": the usage of positional arguments if value and repeats do not describe it fully
  std::string value;                 // "SIZE", "FILE", or "COMMAND" for a positional argument; empty if there is no value
  bool value_may_lack = false;       // the value is optional: --json [FILE]
  std::vector<std::string> choices;  // the complete list of allowed words, if there is one
  std::string description;
  bool required = false;
  bool repeats = false;
  [[nodiscard]] bool takes_file() const { return value == "FILE" || value == "DIR"; }
};

struct command_grammar {
  std::string name;   // empty for the program itself
  std::string group;  // the heading under which `penstock help` lists it
  std::string description, footer;
  std::vector<option_grammar> options;  // named options
  std::vector<option_grammar> places;   // positional arguments
  bool runs_program = false;            // the rest of the command line belongs to another program
  std::vector<example> examples;
};

// Returns the program itself, then its commands in the order of `penstock help`.
std::vector<command_grammar> grammar_of(const CLI::App& app);

// Returns the manual page of a command in roff, such as penstock(1) or penstock-read(1).
std::string manual_page(const std::vector<command_grammar>& grammar, const command_grammar& command);

// Returns what `penstock help` prints for a command, as wide as the terminal, or 80 columns.
std::string help_page(const std::vector<command_grammar>& grammar, const command_grammar& command);

// Returns "penstock read [OPTIONS] FILE...".
std::string usage_of(const command_grammar& command);
// Returns "--path automatic|posix", "-q, --quiet" or "FILE...".
std::string usage_of(const option_grammar& option);

// Returns docs/reference/commands.md: a list of all commands, then usage, options and examples of each.
std::string reference_page(const std::vector<command_grammar>& grammar);

inline constexpr const char* shells[] = {"bash", "zsh", "fish"};
std::string completion(const std::vector<command_grammar>& grammar, const std::string& shell);

// Writes all pages below the folder, in the layout of share/. Errors: os errors.
status write_pages(const std::vector<command_grammar>& grammar, const std::string& folder);

}  // namespace penstock::cli
