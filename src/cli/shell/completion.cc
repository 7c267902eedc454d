// Shell completions. The shell reads each script once; pressing TAB does not start the command.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "cli/common/command.hpp"
#include "cli/common/say.hpp"
#include "cli/common/usage.hpp"
#include "cli/shell/grammar.hpp"

namespace penstock::cli {
namespace {

std::vector<std::string> command_names(const std::vector<command_grammar>& grammar) {
  std::vector<std::string> names;
  for (const command_grammar& each : grammar) {
    if (!each.name.empty()) names.push_back(each.name);
  }
  return names;
}

// Returns the words for an option. For COMMAND of help, these are our commands.
std::vector<std::string> words_of(const std::vector<command_grammar>& grammar, const option_grammar& option) {
  return option.value == "COMMAND" ? command_names(grammar) : option.choices;
}

std::vector<std::string> option_names(const command_grammar& command) {
  std::vector<std::string> names;
  for (const option_grammar& each : command.options) names.insert(names.end(), each.names.begin(), each.names.end());
  return names;
}

// --- bash

std::string bash_words(const std::vector<std::string>& words) {
  return fmt::format("mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$current\")", fmt::join(words, " "));
}

constexpr auto bash_files = "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$current\")";

std::string bash_value(const std::vector<command_grammar>& grammar, const option_grammar& option) {
  const auto words = words_of(grammar, option);
  if (!words.empty()) return bash_words(words);
  return option.takes_file() ? bash_files : ":";
}

std::string bash_command(const std::vector<command_grammar>& grammar, const command_grammar& command) {
  std::string values;
  for (const option_grammar& each : command.options) {
    if (each.value.empty() || each.value_may_lack) continue;
    values += fmt::format("      {}) {}; return ;;\n", fmt::join(each.names, "|"), bash_value(grammar, each));
  }
  std::string out = fmt::format("  '{}')\n", command.name);
  if (!values.empty()) out += "    case $before in\n" + values + "    esac\n";
  out += fmt::format("    if [[ $current == -* ]]; then {}; return; fi\n", bash_words(option_names(command)));
  if (command.name.empty()) {
    out += "    " + bash_words(command_names(grammar)) + "\n";
  } else if (command.runs_program) {
    out += "    compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -c -f -- \"$current\")\n";
  } else if (!command.places.empty()) {
    out += "    " + bash_value(grammar, command.places.front()) + "\n";
  }
  return out + "    ;;\n";
}

std::string bash(const std::vector<command_grammar>& grammar) {
  std::string out = R"(# bash completion for penstock
_penstock() {
  COMPREPLY=()
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command='' word
  # --path=staged is three words to bash
  if [[ $current == '=' ]]; then current=''; elif [[ $before == '=' ]]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi
  for word in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do
    if [[ $word != -* ]]; then command=$word; break; fi
  done
  case $command in
)";
  for (const command_grammar& each : grammar) out += bash_command(grammar, each);
  return out + "  esac\n}\ncomplete -F _penstock penstock\n";
}

// --- zsh

// Escapes text for a single-quoted specification of _arguments.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char each : text) {
    if (each == '[' || each == ']' || each == ':' || each == '\\') out += '\\';
    out += each == '\'' ? "'\\''" : std::string(1, each);
  }
  return out;
}

std::string zsh_value(const std::vector<command_grammar>& grammar, const option_grammar& option) {
  const auto words = words_of(grammar, option);
  if (!words.empty()) return fmt::format(":{}:({})", option.value, fmt::join(words, " "));
  return fmt::format(":{}:{}", option.value, option.takes_file() ? "_files" : " ");
}

std::string zsh_command(const std::vector<command_grammar>& grammar, const command_grammar& command) {
  std::string out;
  for (const option_grammar& each : command.options) {
    for (const std::string& name : each.names) {
      const std::string value = each.value.empty() ? "" : (each.value_may_lack ? ":" : "") + zsh_value(grammar, each);
      out += fmt::format(" \\\n        '{}[{}]{}'", name, zsh_text(each.description), value);
    }
  }
  for (const option_grammar& each : command.places)
    out += fmt::format(" \\\n        '{}{}'", each.repeats ? "*" : "1", zsh_value(grammar, each));
  if (command.runs_program) out += " \\\n        '*::program:_normal'";
  return out;
}

std::string zsh(const std::vector<command_grammar>& grammar) {
  std::string out =
      "#compdef penstock\n_penstock() {\n  local context state state_descr line\n  typeset -A opt_args\n  local -a commands=(\n";
  for (const command_grammar& each : grammar) {
    if (!each.name.empty()) out += fmt::format("    '{}:{}'\n", each.name, zsh_text(each.description));
  }
  out += "  )\n  _arguments -C";
  out += zsh_command(grammar, grammar.front());
  out += " \\\n        '1:command:->command' '*::argument:->argument'\n";
  out += "  case $state in\n    command) _describe command commands ;;\n    argument)\n      case $line[1] in\n";
  for (const command_grammar& each : grammar) {
    if (!each.name.empty()) out += fmt::format("      {})\n        _arguments{}\n        ;;\n", each.name, zsh_command(grammar, each));
  }
  return out +
         "      esac\n      ;;\n  esac\n}\nif [[ $funcstack[1] == _penstock ]]; then _penstock \"$@\"; else compdef _penstock penstock; "
         "fi\n";
}

// --- fish

std::string fish_text(const std::string& text) {
  std::string out;
  for (const char each : text) {
    if (each == '\'' || each == '\\') out += '\\';
    out += each;
  }
  return out;
}

std::string fish_value(const std::vector<command_grammar>& grammar, const option_grammar& option) {
  const auto words = words_of(grammar, option);
  if (!words.empty()) return fmt::format(" -x -a '{}'", fmt::join(words, " "));
  if (option.value.empty() || option.value_may_lack) return {};
  return option.takes_file() ? " -r -F" : " -x";
}

std::string fish_command(const std::vector<command_grammar>& grammar, const command_grammar& command) {
  const std::string when = command.name.empty() ? "__fish_use_subcommand" : fmt::format("__fish_seen_subcommand_from {}", command.name);
  const std::string begin = fmt::format("complete -c penstock -n '{}'", when);
  std::string out;
  for (const option_grammar& each : command.options) {
    out += begin;
    for (const std::string& name : each.names) out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    out += fmt::format("{} -d '{}'\n", fish_value(grammar, each), fish_text(each.description));
  }
  for (const option_grammar& each : command.places)
    out += fmt::format("{}{}\n", begin, each.takes_file() ? " -F" : fish_value(grammar, each));
  if (command.runs_program) out += begin + " -x -a '(__fish_complete_subcommand --fcs-skip=2)'\n";
  return out;
}

std::string fish(const std::vector<command_grammar>& grammar) {
  std::string out = "# fish completion for penstock\ncomplete -c penstock -f\n";
  for (const command_grammar& each : grammar) {
    if (!each.name.empty())
      out += fmt::format("complete -c penstock -n '__fish_use_subcommand' -a {} -d '{}'\n", each.name, fish_text(each.description));
  }
  for (const command_grammar& each : grammar) out += fish_command(grammar, each);
  return out;
}

}  // namespace

std::string completion(const std::vector<command_grammar>& grammar, const std::string& shell) {
  return shell == "bash" ? bash(grammar) : shell == "zsh" ? zsh(grammar) : fish(grammar);
}

void add_completion(CLI::App& app, command& chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App& sub = *app.add_subcommand("completion", "Print the completion script for a shell");
  sub.add_option("SHELL", *shell, "Name of the shell")->required()->check(one_of({std::begin(shells), std::end(shells)}));
  sub.callback([&app, &chosen, shell] {
    chosen.run = [&app, shell] {
      put_exactly(completion(grammar_of(app), *shell));
      return exit_success;
    };
  });
}

}  // namespace penstock::cli
