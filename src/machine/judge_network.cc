// Judges the RDMA network cards in the facts from gather_platform according to NVIDIA's guide to GPUDirect Storage (best practices, "System
// Settings").
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "machine/examine.hpp"
#include "machine/topology.hpp"

namespace penstock::machine {

namespace {

struct card_kind {
  unsigned model;
  std::string_view name;
  bool new_enough;
  bool may_be_either;  // some are VPI cards, which can be set to InfiniBand or Ethernet
};

// Mellanox cards, from the PCI ID database.
constexpr auto card_kinds = std::to_array<card_kind>({
    {0x1003, "ConnectX-3", false, false},
    {0x1007, "ConnectX-3 Pro", false, false},
    {0x1011, "Connect-IB", false, false},
    {0x1013, "ConnectX-4", false, false},
    {0x1015, "ConnectX-4 Lx", false, false},
    {0x1017, "ConnectX-5", true, true},
    {0x1019, "ConnectX-5 Ex", true, true},
    {0x101b, "ConnectX-6", true, true},
    {0x101d, "ConnectX-6 Dx", true, false},
    {0x101f, "ConnectX-6 Lx", true, false},
    {0x1021, "ConnectX-7", true, false},
    {0x1023, "ConnectX-8", true, false},
    {0xa2d2, "BlueField", true, false},
    {0xa2d6, "BlueField-2", true, false},
    {0xa2dc, "BlueField-3", true, false},
});

const pci_facts* card_of(const platform_facts& known, const sys::rdma_port& port) {
  return known.device_at(port.pci_path.substr(port.pci_path.rfind('/') + 1));
}

void judge_port(const platform_facts& known, const nic_port_facts& each, findings& out) {
  const auto& port = each.port;
  out.add("nic.port", port.device, {{"port", std::to_string(port.port)}, {"mode", each.link_mode}, {"rate", each.rate}});
  const auto* card = card_of(known, port);
  if (card == nullptr || card->vendor != mellanox_vendor) return;
  const auto kind = std::ranges::find(card_kinds, card->model, &card_kind::model);
  if (kind == card_kinds.end()) return;
  const std::string name(kind->name);
  out.add(kind->new_enough ? "nic.card" : "nic.old_card", port.device, {{"card", name}});
  if (!kind->may_be_either || each.link_mode != "Ethernet") return;
  out.add("nic.ethernet_mode", port.device, {{"card", name}, {"address", card->basics.address}});
}

// The ports of one card are functions of one PCI device: "0000:3b:00.0" and "0000:3b:00.1".
void judge_card_links(const platform_facts& known, findings& out) {
  struct one_card {
    std::vector<std::string> ports;
    double gigabits = 0;
    const pci_facts* device = nullptr;
  };
  std::map<std::string, one_card> cards;
  for (const auto& each : known.ports) {
    const auto* device = card_of(known, each.port);
    if (!each.port.active() || each.port.is_virtual || device == nullptr) continue;
    auto& card = cards[device->basics.address.substr(0, device->basics.address.rfind('.'))];
    card.ports.push_back(fmt::format("{}:{}", each.port.device, each.port.port));
    card.gigabits += std::strtod(each.rate.c_str(), nullptr);  // "400 Gb/sec (4X NDR)"
    card.device = device;
  }
  for (const auto& [address, card] : cards) {
    if (!card.device->now.known() || card.gigabits <= card.device->now.gigabits()) continue;
    out.add("nic.thin_link", address,
            {{"ports", fmt::format("{}", fmt::join(card.ports, ", "))},
             {"rate", fmt::format("{:.0f}", card.gigabits)},
             {"link", fmt::format("{:.0f} ({})", card.device->now.gigabits(), to_string(card.device->now))}});
  }
}

// Returns true if both belong to the same processor: the same NUMA node or the same root complex.
bool is_near(const platform_facts& known, const pci_facts& gpu, const sys::rdma_port& port) {
  if (known.numa_nodes.size() <= 1) return true;
  if (gpu.basics.numa_node >= 0 && gpu.basics.numa_node == port.numa_node) return true;
  return port.pci_path.starts_with(fmt::format("pci{}/", root_bus(gpu)));
}

void judge_nic_of(const platform_facts& known, const gpu_facts& gpu, const sys::rdma_port& port, findings& out) {
  const auto& device = *known.device_at(gpu.address);
  const auto* card = card_of(known, port);
  const auto above = std::ranges::find_if(device.bridges, &pci_bridge::is_switch);
  if (card != nullptr && relate(device, *card).near == nearness::one_switch) {
    out.add("nic.switch", gpu.address, {{"why", gpu.nic.reason}});
  } else if (!is_near(known, device, port)) {
    out.add("nic.far", gpu.address, {{"why", gpu.nic.reason}});
  } else if (above != device.bridges.end()) {
    out.add("nic.off_switch", gpu.address, {{"why", gpu.nic.reason}, {"switch", above->address}});
  } else {
    out.add("nic.near", gpu.address, {{"why", gpu.nic.reason}});
  }
}

std::string why_none_is_active(const platform_facts& known) {
  std::vector<std::string> states;
  for (const auto& [port, mode, rate] : known.ports) {
    states.push_back(fmt::format("{} port {} is {}", port.device, port.port, port.state.empty() ? "in an unknown state" : port.state));
  }
  return fmt::format("no RDMA port is active: {}", fmt::join(states, ", "));
}

}  // namespace

findings judge_network(const platform_facts& known) {
  findings out;
  if (known.ports.empty()) return out.add("nic.none"), out;
  for (const auto& each : known.ports) {
    if (each.port.active()) judge_port(known, each, out);
  }
  if (!known.has_active_port()) return out.add("nic.down", {}, {{"why", why_none_is_active(known)}}), out;
  judge_card_links(known, out);
  for (const auto& gpu : known.gpus) {
    const auto port = std::ranges::find_if(known.ports, [&](const auto& each) { return each.port.device == gpu.nic.device; });
    const auto& driver = known.device_at(gpu.address)->driver;
    // The GPU may be assigned to a virtual machine.
    if (port != known.ports.end() && (driver.empty() || driver == "nvidia")) judge_nic_of(known, gpu, port->port, out);
  }
  return out;
}

}  // namespace penstock::machine
