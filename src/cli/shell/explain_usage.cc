#include "cli/shell/explain_usage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "cli/common/command.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/usage.hpp"
#include "cli/shell/grammar.hpp"

namespace penstock::cli {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); })) {
    names.push_back(each->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* each : app.get_options()) {
    if (each->get_group().empty()) continue;  // hidden options
    for (const std::string& name : each->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : each->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string unknown_option(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  return fmt::format("unknown option {}{}", name, suggestion(name, option_names(app)));
}

bool is_option(const std::string& word) { return word.size() > 1 && word.front() == '-'; }

// Explains an error in the words before the command, or in the command itself.
std::string describe_before(const CLI::App& app, const CLI::App* sub) {
  const auto words = app.remaining();
  if (words.empty()) return {};
  // In `foo --help`, report the unknown command rather than the option.
  const auto command = std::ranges::find_if_not(words, is_option);
  const std::string& word = sub == nullptr && command != words.end() ? *command : words.front();
  if (!is_option(word)) return unknown_command(app, word);
  const auto known = sub != nullptr ? option_names(*sub) : std::vector<std::string>();
  if (std::find(known.begin(), known.end(), word) != known.end()) {
    return fmt::format("{0} must follow the command: penstock {1} {0}", word, sub->get_name());
  }
  return unknown_option(app, word);
}

std::string help_of(const CLI::App& app, const std::string& command) {
  const auto grammar = grammar_of(app);
  const auto page = std::ranges::find(grammar, command, &command_grammar::name);
  return help_page(grammar, page == grammar.end() ? grammar.front() : *page);
}

// Rewords CLI11's messages, such as "--pid: 1 required PID missing" for an option without its value, and "FILE: At least 2 required but
// received 1".
std::string in_plain_words(const std::string& error) {
  constexpr std::string_view before = ": 1 required ", behind = " missing", too_few = ": At least ";
  if (const auto few = error.find(too_few); few != std::string::npos && error.find(" required but received ") != std::string::npos) {
    const auto least = error.substr(few + too_few.size());
    return fmt::format("{} {} are required", least.substr(0, least.find(' ')), error.substr(0, few));
  }
  const auto at = error.find(before);
  if (at == std::string::npos || !error.ends_with(behind)) return error;
  const auto type = error.substr(at + before.size(), error.size() - at - before.size() - behind.size());
  return fmt::format("{} must be followed by {}", error.substr(0, at), type == "TEXT" ? "a word" : type.substr(0, type.find(':')));
}

// Reports an unknown option before the errors that it causes: `read --verfy` lacks a file only because of the typo.
std::string describe_after(const CLI::App& sub, const CLI::ParseError& error) {
  auto words = sub.remaining();
  if (sub.get_prefix_command() && !words.empty()) words.resize(1);  // the other words belong to another program
  if (const auto option = std::find_if(words.begin(), words.end(), is_option); option != words.end()) return unknown_option(sub, *option);
  const bool left_over = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !words.empty();
  return left_over ? fmt::format("unexpected argument \"{}\"", words.front()) : in_plain_words(error.what());
}

}  // namespace

std::string unknown_command(const CLI::App& app, const std::string& word) {
  return fmt::format("unknown command \"{}\"{}", word, suggestion(word, command_names(app)));
}

int explain_usage(const CLI::App& app, const CLI::ParseError& error) {
  const auto commands = app.get_subcommands();
  const CLI::App* sub = commands.empty() ? nullptr : commands.front();
  // `penstock foo --help`: CLI11 handles the option before it processes the word.
  const bool is_named = sub != nullptr || std::ranges::all_of(app.remaining(), is_option);
  if (dynamic_cast<const CLI::CallForHelp*>(&error) != nullptr && is_named) {
    put_exactly(help_of(app, sub == nullptr ? "" : sub->get_name()));
    return exit_success;
  }
  if (dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr && is_named) {
    put_exactly(fmt::format("{}\n", error.what()));
    return exit_success;
  }
  if (sub == nullptr && app.remaining().empty()) {
    complain("{}\npenstock: a command is required\n", as_is{help_of(app, "")});
    return exit_usage;
  }
  if (const std::string wrong = describe_before(app, sub); !wrong.empty()) {
    note_failure(wrong);
    complain("penstock: {}\nRun `penstock help` for the commands and options.\n", wrong);
  } else {
    const std::string text = fmt::format("{}: {}", sub->get_name(), describe_after(*sub, error));
    note_failure(text);
    complain("penstock: {}\nRun `penstock help {}` for its options.\n", text, sub->get_name());
  }
  return exit_usage;
}

}  // namespace penstock::cli
