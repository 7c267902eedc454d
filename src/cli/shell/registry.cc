#include "cli/shell/registry.hpp"

// The commands, one line each, with their purpose. To add one, create its file and add a line here.
// clang-format off
#define PENSTOCK_COMMANDS(declared) \
  declared(demo, "Get started") \
  declared(check, "Get started") \
  declared(devices, "Get started") \
  declared(read, "Read and write files") \
  declared(write, "Read and write files") \
  declared(cp, "Read and write files") \
  declared(verify, "Read and write files") \
  declared(load, "Models") \
  declared(inspect, "Models") \
  declared(convert, "Models") \
  declared(serve, "Models") \
  declared(bench, "Measure") \
  declared(io, "Measure") \
  declared(pipe_bench, "Measure") \
  declared(stats, "Watch running processes") \
  declared(top, "Watch running processes") \
  declared(run, "Programs that use NVIDIA cuFile") \
  declared(completion, "Shell") \
  declared(help, "Shell")
// clang-format on

namespace penstock::cli {

#define PENSTOCK_DECLARE_COMMAND(name, group) void add_##name(CLI::App& app, command& chosen);
PENSTOCK_COMMANDS(PENSTOCK_DECLARE_COMMAND)

namespace {

struct registration {
  void (*add)(CLI::App& app, command& chosen);
  const char* group;
};

#define PENSTOCK_REGISTER_COMMAND(name, group) {add_##name, group},
constexpr registration registered[] = {PENSTOCK_COMMANDS(PENSTOCK_REGISTER_COMMAND)};

}  // namespace

void add_commands(CLI::App& app, command& chosen) {
  for (const registration& each : registered) {
    each.add(app, chosen);
    app.get_subcommands([](CLI::App* /*any*/) { return true; }).back()->group(each.group);
  }
}

}  // namespace penstock::cli
