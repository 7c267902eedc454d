// The command line `penstock`: translation only; the work is done by the library.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <initializer_list>

#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/say.hpp"
#include "cli/usage.hpp"

namespace {

using namespace penstock::cli;

// By what they are for, as `penstock help` lists them.
void add_commands(CLI::App& app, command& chosen, const std::vector<std::string>& program) {
  const auto newest = [&app]() -> CLI::App& { return *app.get_subcommands([](CLI::App* /*each*/) { return true; }).back(); };
  const auto add_group = [&](const std::string& name, std::initializer_list<void (*)(CLI::App&, command&)> adders) {
    for (const auto add : adders) {
      add(app, chosen);
      newest().group(name);
    }
  };
  add_group("Begin", {add_demo, add_check, add_devices});
  add_group("Read and write files", {add_read, add_write, add_cp, add_verify});
  add_group("Models", {add_load, add_inspect, add_convert});
  add_group("Measure", {add_bench, add_io, add_pipe_bench});
  add_group("Watch running processes", {add_stats, add_top});
  add_run(app, chosen, program);
  newest().group("Programs that use NVIDIA cuFile");
  add_group("Shell", {add_completion, add_help});
}

int run(int argc, char** argv) {
  CLI::App app{"Moves bytes between files, GPU memory and host memory at the speed of the hardware", "penstock"};
  app.set_version_flag("-V,--version", fmt::format("penstock {}", penstock::version()));
  app.require_subcommand(1);
  command chosen;
  add_commands(app, chosen, take_program(argc, argv));
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
