#include "cli/shell/grammar.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace penstock::cli {
namespace {

// Returns the words of "TEXT:{one, two}".
std::vector<std::string> choices_of(const std::string& type) {
  const auto begin = type.find('{');
  const auto end = type.find('}', begin);
  std::vector<std::string> found;
  if (begin == std::string::npos || end == std::string::npos) return found;
  std::istringstream words(type.substr(begin + 1, end - begin - 1));
  for (std::string word; std::getline(words >> std::ws, word, ',');) found.push_back(word);
  return found;
}

std::string value_of(const CLI::Option& option, const std::string& type) {
  if (option.get_positional() && option.get_lnames().empty()) return option.get_name(true);
  if (option.get_items_expected_max() == 0) return {};
  const std::string name = type.substr(0, type.find(':'));
  if (name == "TEXT") return "NAME";
  return name == "UINT" || name == "INT" || name == "FLOAT" ? "N" : name;
}

std::string names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* each : options) names.push_back(each->get_name(each->get_lnames().empty() && each->get_snames().empty()));
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, " or "));
}

// Returns the description with the options that it needs and, if they are few, those that it excludes.
std::string description_of(const CLI::Option& option) {
  constexpr std::size_t most = 2;
  const auto needed = option.get_needs(), excluded = option.get_excludes();
  std::string text = option.get_description();
  if (!needed.empty()) text += fmt::format(" (only with {})", names_of(needed));
  if (!excluded.empty() && excluded.size() <= most) text += fmt::format(" (not with {})", names_of(excluded));
  return text;
}

option_grammar grammar_of(const CLI::Option& option) {
  option_grammar made;
  for (const std::string& name : option.get_snames()) made.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) made.names.push_back("--" + name);
  const std::string type = option.get_type_name();
  made.usage = option.get_option_text();
  made.value = value_of(option, type);
  made.choices = choices_of(type);
  made.description = description_of(option);
  made.required = option.get_required();
  made.repeats = option.get_items_expected_max() > 1;
  if (made.value.starts_with('[')) {
    made.value = made.value.substr(1, made.value.size() - 2);
    made.value_may_lack = true;
    made.repeats = false;
  }
  return made;
}

command_grammar grammar_of_one(const CLI::App& app, const std::string& name) {
  command_grammar made{name, app.get_group(), app.get_description(), app.get_footer(), {}, {}, app.get_prefix_command(), {}};
  for (const example& each : all_examples()) {
    if (each.command == name) made.examples.push_back(each);
  }
  for (const CLI::Option* each : app.get_options()) {
    if (each->get_group().empty()) continue;
    option_grammar option = grammar_of(*each);
    (option.names.empty() ? made.places : made.options).push_back(std::move(option));
  }
  return made;
}

status write_file(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) return status::from_errno(error.value(), fmt::format("create {}", path.parent_path().string()));
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return status::from_errno(errno != 0 ? errno : EIO, fmt::format("write {}", path.string()));
  return {};
}

}  // namespace

std::vector<command_grammar> grammar_of(const CLI::App& app) {
  std::vector<command_grammar> made{grammar_of_one(app, "")};
  for (const CLI::App* each : app.get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); })) {
    made.push_back(grammar_of_one(*each, each->get_name()));
  }
  return made;
}

status write_pages(const std::vector<command_grammar>& grammar, const std::string& folder) {
  const std::filesystem::path root(folder);
  for (const command_grammar& each : grammar) {
    const std::string page = each.name.empty() ? "penstock.1" : fmt::format("penstock-{}.1", each.name);
    if (status error = write_file(root / "man/man1" / page, manual_page(grammar, each)); !error.ok()) return error;
  }
  if (status error = write_file(root / "bash-completion/completions/penstock", completion(grammar, "bash")); !error.ok()) return error;
  if (status error = write_file(root / "zsh/site-functions/_penstock", completion(grammar, "zsh")); !error.ok()) return error;
  return write_file(root / "fish/vendor_completions.d/penstock.fish", completion(grammar, "fish"));
}

}  // namespace penstock::cli
