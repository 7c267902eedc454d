// penstock devices: what there is to read into.
#include <fmt/format.h>

#include "cli/commands.hpp"
#include "cli/sizes.hpp"
#include "cli/transfer.hpp"

namespace penstock::cli {
namespace {

int list_devices() {
  auto owner = engine::create();
  if (!owner) return fail(owner.error());
  for (const device_info& device : owner->devices()) {
    const std::string node = device.numa_node >= 0 ? fmt::format(", NUMA node {}", device.numa_node) : "";
    fmt::print("{}  {}, {}{}{}\n", device.name, device.description, format_size(device.memory_bytes),
               device.pci_bus_id.empty() ? "" : ", PCI " + device.pci_bus_id, node);
  }
  if (const std::string reason = why_no_gpu(*owner); !reason.empty()) fmt::print("{}\n", reason);
  return exit_success;
}

}  // namespace

void add_devices(CLI::App& app, command& chosen) {
  CLI::App& sub = *app.add_subcommand("devices", "List the devices, or say why no GPU is among them");
  sub.callback([&chosen] { chosen = list_devices; });
}

}  // namespace penstock::cli
