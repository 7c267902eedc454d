#include "cli/usage.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <numeric>
#include <utility>

#include "cli/commands.hpp"
#include "cli/grammar.hpp"
#include "cli/say.hpp"

namespace penstock::cli {
namespace {

// How many letters must be changed, added, dropped or swapped with their neighbour to get from one word to the other.
std::size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> before;
  std::vector<std::size_t> above(to.size() + 1);
  std::iota(above.begin(), above.end(), std::size_t{0});
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::vector<std::size_t> row(to.size() + 1, i);
    for (std::size_t j = 1; j <= to.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = std::exchange(above, std::move(row));
  }
  return above.back();
}

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
    if (each->get_group().empty()) continue;  // for ourselves only
    for (const std::string& name : each->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : each->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string unknown_option(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  return fmt::format("unknown option {}{}", name, suggestion(name, option_names(app)));
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  return fmt::format("unknown command \"{}\"{}", word, suggestion(word, command_names(app)));
}

bool is_option(const std::string& word) { return word.size() > 1 && word.front() == '-'; }

// Of the words before the command, and of the command itself.
std::string describe_before(const CLI::App& app, const CLI::App* sub) {
  const auto words = app.remaining();
  if (words.empty()) return {};
  const std::string& word = words.front();
  if (!is_option(word)) return unknown_command(app, word);
  const auto known = sub != nullptr ? option_names(*sub) : std::vector<std::string>();
  if (std::find(known.begin(), known.end(), word) != known.end()) {
    return fmt::format("{0} goes behind the command: penstock {1} {0}", word, sub->get_name());
  }
  return unknown_option(app, word);
}

std::string help_of(const CLI::App& app, const std::string& command) {
  const auto grammar = grammar_of(app);
  const auto page = std::ranges::find(grammar, command, &command_grammar::name);
  return help_page(grammar, page == grammar.end() ? grammar.front() : *page);
}

// "--pid: 1 required PID missing", as CLI11 says it of an option without its value.
std::string in_plain_words(const std::string& error) {
  constexpr std::string_view before = ": 1 required ", behind = " missing";
  const auto at = error.find(before);
  if (at == std::string::npos || !error.ends_with(behind)) return error;
  const auto type = error.substr(at + before.size(), error.size() - at - before.size() - behind.size());
  return fmt::format("{}: {} is missing behind it", error.substr(0, at), type == "TEXT" ? "a word" : type.substr(0, type.find(':')));
}

// An unknown option is named rather than what its absence led to: `read --verfy` lacks a file only because of the slip.
std::string describe_after(const CLI::App& sub, const CLI::ParseError& error) {
  auto words = sub.remaining();
  if (sub.get_prefix_command() && !words.empty()) words.resize(1);  // the others are another program's
  if (const auto option = std::find_if(words.begin(), words.end(), is_option); option != words.end()) return unknown_option(sub, *option);
  const bool left_over = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !words.empty();
  return left_over ? fmt::format("unexpected word \"{}\"", words.front()) : in_plain_words(error.what());
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  const std::size_t dashes = std::min(word.find_first_not_of('-'), word.size());
  const std::size_t letters = word.size() - dashes;
  std::string best;
  std::size_t fewest = std::max<std::size_t>(1, letters / 3) + 1;
  for (const std::string& name : names) {
    const bool begun = letters >= 2 && name.starts_with(word);
    // -x and -y are one letter apart and have nothing in common.
    const std::size_t apart = begun ? 0 : name.size() <= dashes + 1 || letters < 2 ? fewest : distance(word, name);
    if (apart < fewest) fewest = apart, best = name;
  }
  return best;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& names) {
  const std::string name = nearest_name(word, names);
  return name.empty() ? name : fmt::format("; did you mean {}?", name);
}

CLI::Validator one_of(std::vector<std::string> names) {
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  const auto check = [names = std::move(names), list](const std::string& word) {
    const bool known = std::find(names.begin(), names.end(), word) != names.end();
    return known ? std::string() : fmt::format("\"{}\" is none of {}{}", word, list, suggestion(word, names));
  };
  return {check, "{" + list + "}"};
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  return {[least, most](const std::string& word) {
            std::uint64_t number = 0;
            const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
            const bool is_number = error != std::errc::invalid_argument && end == word.data() + word.size();
            if (is_number && error == std::errc() && number >= least && number <= most) return std::string();
            if (most != no_limit) return fmt::format("\"{}\" is not a whole number from {} to {}", word, least, most);
            if (is_number && (error != std::errc() || number >= least)) return fmt::format("\"{}\" is too large", word);
            return fmt::format("\"{}\" is not a whole number of {} or more", word, least);
          },
          ""};
}

CLI::Validator number_of_seconds(double least, double most) {
  return {[least, most](const std::string& word) {
            double seconds = 0;
            const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), seconds);
            // False of no number at all, too.
            const bool good = error == std::errc() && end == word.data() + word.size() && seconds >= least && seconds <= most;
            return good ? std::string() : fmt::format("\"{}\" is not a number of seconds from {} to {}", word, least, most);
          },
          ""};
}

int explain_usage(const CLI::App& app, const CLI::ParseError& error) {
  const auto commands = app.get_subcommands();
  const CLI::App* sub = commands.empty() ? nullptr : commands.front();
  if (dynamic_cast<const CLI::CallForHelp*>(&error) != nullptr) {
    put_exactly(help_of(app, sub == nullptr ? "" : sub->get_name()));
    return exit_success;
  }
  if (error.get_exit_code() == 0) return app.exit(error);  // the version
  if (sub == nullptr && app.remaining().empty()) {
    complain("{}\npenstock: a command is required\n", as_is{help_of(app, "")});
    return exit_usage;
  }
  if (const std::string wrong = describe_before(app, sub); !wrong.empty()) {
    complain("penstock: {}\nRun `penstock help` for the commands and options there are.\n", wrong);
  } else {
    complain("penstock: {0}: {1}\nRun `penstock help {0}` for its options.\n", sub->get_name(), describe_after(*sub, error));
  }
  return exit_usage;
}

void add_help(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<std::string>();
  CLI::App& sub = *app.add_subcommand("help", "List the commands, or the options of one");
  sub.add_option("COMMAND", *wanted, "Command to explain");
  auto manual = std::make_shared<bool>(false);
  auto folder = std::make_shared<std::string>();
  sub.add_flag("--man", *manual, "Print it as a manual page: penstock help --man read | man -l -");
  sub.add_option("--write-pages", *folder, "Write manual pages and completions below this folder, for the build")->group("");
  sub.callback([&app, &chosen, wanted, manual, folder] {
    chosen = [&app, wanted, manual, folder] {
      const auto grammar = grammar_of(app);
      if (!folder->empty()) {
        const status error = write_pages(grammar, *folder);
        return error.ok() ? exit_success : fail(error);
      }
      const auto page = std::find_if(grammar.begin(), grammar.end(), [&wanted](const auto& each) { return each.name == *wanted; });
      if (*manual && page != grammar.end()) {
        put_exactly(manual_page(grammar, *page));
      } else if (wanted->empty()) {
        put_exactly(help_page(grammar, grammar.front()));
      } else if (page != grammar.end()) {
        put_exactly(help_page(grammar, *page));
      } else {
        complain("penstock: {}\n", unknown_command(app, *wanted));
        return exit_usage;
      }
      return exit_success;
    };
  });
}

}  // namespace penstock::cli
