// The command line `penstock`: translation only; the work is done by the library.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/say.hpp"
#include "cli/shell/explain_usage.hpp"
#include "cli/shell/registry.hpp"

namespace {

using namespace penstock::cli;

// Takes what stands at and behind the first "--" off the command line of a command that runs another program: it is that program's, and
// CLI11 would read options and lists into it. Empty for the other commands, which keep theirs.
std::vector<std::string> take_program(const CLI::App& app, int& argc, char** argv) {
  if (argc < 2) return {};
  const std::string name = argv[1];
  const auto runs_program = [&name](const CLI::App* sub) { return sub->get_name() == name && sub->get_prefix_command(); };
  if (app.get_subcommands(runs_program).empty()) return {};
  char** const end = argv + argc;
  char** const separator = std::find_if(argv + 2, end, [](std::string_view word) { return word == "--"; });
  argc = static_cast<int>(separator - argv);
  return {separator, end};
}

int run(int argc, char** argv) {
  CLI::App app{"Moves bytes between files, GPU memory and host memory at the speed of the hardware", "penstock"};
  app.set_version_flag("-V,--version", fmt::format("penstock {}", penstock::version()));
  app.require_subcommand(1);
  command chosen;
  add_commands(app, chosen);
  chosen.program = take_program(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return explain_usage(app, error);
  }
  return chosen.run();
}

}  // namespace

int main(int argc, char** argv) {
  // Each line as soon as it is known, in a pipe too.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  catch_interrupts();
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    complain("penstock: {}\n", error.what());
    return exit_failure;
  }
}
