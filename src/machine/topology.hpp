// How near the devices of a machine are to its GPUs. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "machine/platform_facts.hpp"

namespace penstock::machine {

struct neighbour {
  std::string gpu, peer;  // PCI addresses
  std::string what;       // "mlx5_0", "network", "nvme"
  std::string
      relation;  // "below one switch", "below one root port", "of one root complex", "of one NUMA node", "of another NUMA node", "unknown"
  std::string shared;  // the bridge or the node that they share; empty: none
};
// Of each GPU of NVIDIA with each network card and NVMe drive, the nearest first.
std::vector<neighbour> neighbours(const platform_facts& known);

}  // namespace penstock::machine
