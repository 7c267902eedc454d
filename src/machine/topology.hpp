// The distance between a machine's devices and its GPUs. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/platform_facts.hpp"

namespace penstock::machine {

struct neighbour {
  std::string gpu, peer;  // PCI addresses
  std::string what;       // "mlx5_0", "network", "nvme"
  std::string
      relation;  // "below one switch", "below one root port", "of one root complex", "of one NUMA node", "of another NUMA node", "unknown"
  std::string shared;  // the bridge or node that both share; empty: none
};
enum class nearness : std::uint8_t { one_switch = 0, root_port, root_complex, node, far, unknown };

struct relation {
  nearness near = nearness::unknown;
  std::string shared;  // as in neighbour
};
relation relate(const pci_facts& gpu, const pci_facts& peer);

// Relates each NVIDIA GPU to each network card and NVMe drive, nearest first.
std::vector<neighbour> neighbours(const platform_facts& known);

}  // namespace penstock::machine
