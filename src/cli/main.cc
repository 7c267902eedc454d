// The command line `penstock`: translation only; the work is done by the library.
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/say.hpp"
#include "cli/usage.hpp"

namespace {

using namespace penstock::cli;

int run(int argc, char** argv) {
  CLI::App app{"Moves bytes between files, GPU memory and host memory at the speed of the hardware", "penstock"};
  app.set_version_flag("-V,--version", fmt::format("penstock {}", penstock::version()));
  app.require_subcommand(1);
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.get_formatter()->label("Subcommands", "Commands");
  command chosen;
  for (const auto add : {add_demo, add_load, add_read, add_write, add_io, add_verify, add_cp, add_convert, add_inspect, add_check,
                         add_devices, add_bench, add_pipe_bench, add_stats, add_top, add_completion, add_help})
    add(app, chosen);
  add_run(app, chosen, take_program(argc, argv));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return explain_usage(app, error);
  }
  return chosen();
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
