// penstock devices: lists the devices that files can be read into.
#include <fmt/format.h>

#include <memory>

#include "cli/begin/check.hpp"
#include "cli/common/command.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer_memory.hpp"

namespace penstock::cli {
namespace {

void print_lines(const engine& owner, bool quiet) {
  for (const device_info& device : owner.devices()) {
    const std::string node = device.numa_node >= 0 ? fmt::format(", NUMA node {}", device.numa_node) : "";
    say("{}  {}, {}{}{}\n", device.name, device.description, format_size(device.memory_bytes),
        device.pci_bus_id.empty() ? "" : ", PCI " + device.pci_bus_id, node);
  }
  if (const std::string reason = why_no_gpu(owner); !reason.empty() && !quiet) say("{}\n", reason);
}

int list_devices(const output_options& output) {
  auto owner = make_engine();
  if (!owner) return fail(owner.error());
  if (output.json) {
    print_json({{"devices", devices_json(owner->devices())}, {"no_gpu", error_json(owner->cuda_status())}});
  } else {
    print_lines(*owner, output.quiet);
  }
  return exit_success;
}

}  // namespace

void add_devices(CLI::App& app, command& chosen) {
  CLI::App& sub = *app.add_subcommand("devices", "List the devices, or explain why none of them is a GPU");
  auto output = std::make_shared<output_options>();
  add_output_options(sub, *output);
  sub.callback([output, &chosen] { chosen.run = [output] { return list_devices(*output); }; });
}

}  // namespace penstock::cli
