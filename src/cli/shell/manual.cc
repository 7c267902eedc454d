// Manual pages in roff.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "cli/shell/grammar.hpp"
#include "penstock/version.hpp"

namespace penstock::cli {
namespace {

// Escapes text for roff: no line may start like a roff request, and hyphens must remain copyable.
std::string roff(const std::string& text) {
  std::string out;
  for (const char each : text) {
    const bool at_begin = out.empty() || out.back() == '\n';
    if (each == '-') {
      out += "\\-";
    } else if (each == '\\') {
      out += "\\e";
    } else if (at_begin && (each == '.' || each == '\'')) {
      out += std::string("\\&") + each;
    } else {
      out += each;
    }
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

// Returns "\-\-path {posix|staged}" or "FILE...".
std::string usage(const option_grammar& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back(bold(name));
  std::string value = option.choices.empty() ? italic(option.value) : roff(fmt::format("{{{}}}", fmt::join(option.choices, "|")));
  if (option.value.empty()) value.clear();
  if (option.names.empty()) return value + (option.repeats ? "..." : "");
  if (option.value_may_lack) value = fmt::format("[{}]", value);
  return fmt::format("{}{}{}", fmt::join(names, ", "), value.empty() ? "" : " ", value);
}

std::string synopsis(const command_grammar& command) {
  if (command.name.empty()) return bold("penstock") + " " + italic("COMMAND") + " [" + italic("OPTIONS") + "]";
  std::string out = bold("penstock " + command.name) + " [" + italic("OPTIONS") + "]";
  for (const option_grammar& each : command.places) out += each.required ? " " + usage(each) : " [" + usage(each) + "]";
  if (command.runs_program) out += " " + bold("--") + " " + italic("COMMAND") + " [" + italic("ARGUMENTS") + "...]";
  return out;
}

std::string described(const std::string& title, const std::vector<option_grammar>& options) {
  std::string out = options.empty() ? "" : fmt::format(".SH {}\n", title);
  for (const option_grammar& each : options) out += fmt::format(".TP\n{}\n{}\n", usage(each), roff(each.description));
  return out;
}

std::string roff_examples(const command_grammar& command) {
  std::string out = command.examples.empty() ? "" : ".SH EXAMPLES\n";
  for (const example& each : command.examples)
    out += fmt::format(".PP\n{}:\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n", roff(std::string(each.purpose)), bold(std::string(each.line)));
  return out;
}

std::string list_of_commands(const std::vector<command_grammar>& grammar) {
  std::string out = ".SH COMMANDS\n";
  for (const command_grammar& each : grammar) {
    if (!each.name.empty()) out += fmt::format(".TP\n{}\n{}\n", bold(each.name), roff(each.description));
  }
  return out;
}

std::string see_also(const std::vector<command_grammar>& grammar, const command_grammar& command) {
  if (!command.name.empty()) return ".BR penstock (1)\n";
  std::string out;
  for (const command_grammar& each : grammar) {
    if (!each.name.empty()) out += fmt::format(".BR {} (1){}\n", roff("penstock-" + each.name), &each == &grammar.back() ? "" : ",");
  }
  return out;
}

}  // namespace

std::string manual_page(const std::vector<command_grammar>& grammar, const command_grammar& command) {
  const std::string name = command.name.empty() ? "penstock" : "penstock-" + command.name;
  std::string title = name;
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  std::string out = fmt::format(".TH {} 1 \"\" \"penstock {}\" \"User Commands\"\n", roff(title), version());
  out += fmt::format(".SH NAME\n{} \\- {}\n", roff(name), roff(command.description));
  out += fmt::format(".SH SYNOPSIS\n{}\n", synopsis(command));
  out += fmt::format(".SH DESCRIPTION\n{}.\n", roff(command.description));
  if (!command.footer.empty()) out += fmt::format(".PP\n.nf\n{}\n.fi\n", roff(command.footer));
  if (command.name.empty()) out += list_of_commands(grammar);
  out += described("ARGUMENTS", command.places) + described("OPTIONS", command.options);
  out += ".SH EXIT STATUS\n0 on success, 1 on failure (standard error gives the reason), and 2 for an invalid command line.\n";
  if (command.runs_program) out += "After the program has started, its exit status.\n";
  return out + roff_examples(command) + ".SH SEE ALSO\n" + see_also(grammar, command);
}

}  // namespace penstock::cli
