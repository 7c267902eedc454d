// penstock help: lists the commands and prints the page of each.
#include <algorithm>
#include <memory>
#include <string>

#include "cli/common/command.hpp"
#include "cli/common/say.hpp"
#include "cli/shell/explain_usage.hpp"
#include "cli/shell/grammar.hpp"

namespace penstock::cli {

void add_help(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<std::string>();
  CLI::App& sub = *app.add_subcommand("help", "List the commands, or the options and examples of one");
  sub.add_option("COMMAND", *wanted, "Command to explain");
  auto manual = std::make_shared<bool>(false);
  auto folder = std::make_shared<std::string>();
  sub.add_flag("--man", *manual, "Print a manual page: penstock help --man read | man -l -");
  auto markdown = std::make_shared<bool>(false);
  sub.add_flag("--markdown", *markdown, "Print a Markdown reference of all commands");
  sub.add_option("--write-pages", *folder, "Write manual pages and completions below this folder, for the build")->group("");
  sub.callback([&app, &chosen, wanted, manual, markdown, folder] {
    chosen.run = [&app, wanted, manual, markdown, folder] {
      const auto grammar = grammar_of(app);
      if (!folder->empty()) {
        const status error = write_pages(grammar, *folder);
        return error.ok() ? exit_success : fail(error);
      }
      const auto page = std::find_if(grammar.begin(), grammar.end(), [&wanted](const auto& each) { return each.name == *wanted; });
      if (*markdown) {
        put_exactly(reference_page(grammar));
      } else if (*manual && page != grammar.end()) {
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
