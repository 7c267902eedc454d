// The pages of `penstock help`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/common/say.hpp"
#include "cli/shell/grammar.hpp"

namespace penstock::cli {
namespace {

constexpr std::size_t usual_columns = 80;
constexpr std::size_t most_head = 24;  // a longer head gets its own line

// An entry of a list: its head and its description.
struct entry {
  std::string head, text;
};

std::string value_in_help(const option_grammar& option) {
  if (option.value.empty()) return {};
  const std::string value = option.choices.empty() ? option.value : fmt::format("{}", fmt::join(option.choices, "|"));
  return option.value_may_lack ? fmt::format("[{}]", value) : value;
}

entry entry_of(const option_grammar& option) { return {usage_of(option), option.description}; }

std::string list(std::string_view title, const std::vector<entry>& entries, std::size_t head, std::size_t columns) {
  std::string out = entries.empty() ? "" : fmt::format("\n{}:\n", title);
  for (const entry& each : entries) {
    const bool fits = width_of(each.head) <= head;
    const std::string begin =
        fits ? fmt::format("  {:<{}}  ", each.head, head) : fmt::format("  {}\n{}", each.head, std::string(head + 4, ' '));
    // Wrap the text as if the head consisted of spaces.
    const std::string text = wrapped(std::string(head + 4, ' ') + each.text, columns, 0);
    out += begin + text.substr(head + 4) + "\n";
  }
  return out;
}

std::size_t head_of(const std::vector<entry>& entries) {
  std::size_t widest = 0;
  for (const entry& each : entries) {
    if (width_of(each.head) <= most_head) widest = std::max(widest, width_of(each.head));
  }
  return widest;
}

std::vector<entry> entries_of(const std::vector<option_grammar>& options) {
  std::vector<entry> made;
  for (const option_grammar& each : options) made.push_back(entry_of(each));
  return made;
}

std::string examples_of(const command_grammar& command) {
  std::string out = command.examples.empty() ? "" : "\nExamples:\n";
  for (const example& each : command.examples) out += fmt::format("  # {}\n  {}\n", each.purpose, each.line);
  return out;
}

// Lists the commands by group, in the order of their declaration.
std::string lists_of_commands(const std::vector<command_grammar>& grammar, std::size_t columns) {
  std::vector<entry> all;
  for (const command_grammar& each : grammar) all.push_back({each.name, {}});
  const std::size_t head = head_of(all);
  std::string out;
  for (std::size_t i = 1; i < grammar.size();) {
    std::vector<entry> group;
    const std::string& title = grammar[i].group;
    for (; i < grammar.size() && grammar[i].group == title; ++i) group.push_back({grammar[i].name, grammar[i].description});
    out += list(title, group, head, columns);
  }
  return out;
}

}  // namespace

std::string usage_of(const option_grammar& option) {
  if (option.names.empty()) return !option.usage.empty() ? option.usage : option.value + (option.repeats ? "..." : "");
  const std::string value = value_in_help(option);
  return fmt::format("{}{}{}", fmt::join(option.names, ", "), value.empty() ? "" : " ", value);
}

std::string usage_of(const command_grammar& command) {
  if (command.name.empty()) return "penstock COMMAND [OPTIONS]";
  std::string out = fmt::format("penstock {} [OPTIONS]", command.name);
  for (const option_grammar& each : command.places) {
    const std::string name = usage_of(each);
    out += each.required ? " " + name : fmt::format(" [{}]", name);
  }
  return out + (command.runs_program ? " -- COMMAND [ARGUMENTS...]" : "");
}

std::string help_page(const std::vector<command_grammar>& grammar, const command_grammar& command) {
  const std::size_t terminal = columns_of(stdout);
  const std::size_t columns = terminal > 0 ? terminal : usual_columns;
  const auto places = entries_of(command.places), options = entries_of(command.options);
  std::string out = wrapped(fmt::format("{}.\n\nUsage: {}\n", command.description, usage_of(command)), columns, 0);
  if (command.name.empty()) out += lists_of_commands(grammar, columns);
  const std::size_t head = std::max(head_of(places), head_of(options));
  out += list("Arguments", places, head, columns) + list("Options", options, head, columns);
  if (command.name.empty()) out += "\n`penstock help COMMAND` shows the options of a command and examples.\n";
  if (!command.footer.empty()) out += "\n" + wrapped(command.footer, columns, 0) + "\n";
  return out + examples_of(command);
}

}  // namespace penstock::cli
