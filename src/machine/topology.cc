#include "machine/topology.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace penstock::machine {

namespace {

// In the order of the enumerators.
std::string_view word_of(nearness of) {
  constexpr std::string_view words[] = {"below one switch", "below one root port",  "of one root complex",
                                        "of one NUMA node", "of another NUMA node", "unknown"};
  return words[static_cast<std::size_t>(of)];
}

std::string name_of(const platform_facts& known, const pci_facts& device) {
  if (device.is_nvme) return "nvme";
  for (const auto& each : known.ports) {
    if (each.port.pci_path.ends_with("/" + device.basics.address)) return each.port.device;
  }
  return "network";
}

}  // namespace

relation relate(const pci_facts& gpu, const pci_facts& peer) {
  const pci_bridge* shared = nullptr;
  for (std::size_t i = 0; i < std::min(gpu.bridges.size(), peer.bridges.size()); ++i) {
    if (gpu.bridges[i].address == peer.bridges[i].address) shared = &gpu.bridges[i];
  }
  if (shared != nullptr) return {shared->is_switch ? nearness::one_switch : nearness::root_port, shared->address};
  if (root_bus(gpu) == root_bus(peer)) return {nearness::root_complex, root_bus(gpu)};
  if (gpu.basics.numa_node < 0 || peer.basics.numa_node < 0) return {nearness::unknown, {}};
  if (gpu.basics.numa_node != peer.basics.numa_node) return {nearness::far, {}};
  return {nearness::node, std::to_string(gpu.basics.numa_node)};
}

std::vector<neighbour> neighbours(const platform_facts& known) {
  std::vector<neighbour> all;
  for (const auto& gpu : known.devices) {
    if (gpu.basics.kind != pci_kind::gpu || gpu.vendor != nvidia_vendor) continue;
    std::vector<std::pair<nearness, neighbour>> of_gpu;
    for (const auto& peer : known.devices) {
      if (peer.basics.kind != pci_kind::network && !peer.is_nvme) continue;
      const auto [near, shared] = relate(gpu, peer);
      of_gpu.push_back({near, {gpu.basics.address, peer.basics.address, name_of(known, peer), std::string(word_of(near)), shared}});
    }
    std::ranges::stable_sort(of_gpu, {}, &std::pair<nearness, neighbour>::first);
    for (auto& each : of_gpu) all.push_back(std::move(each.second));
  }
  return all;
}

}  // namespace penstock::machine
