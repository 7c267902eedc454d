// Facts about the machine, read from sysfs. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

enum class pci_kind : std::uint8_t { other = 0, gpu, storage, network };

// A PCI device as described by sysfs. Values missing from sysfs keep their defaults.
struct pci_device {
  std::string address;  // "0000:3b:00.0"
  pci_kind kind = pci_kind::other;
  int numa_node = -1;              // -1: unknown
  std::uint64_t window_bytes = 0;  // its largest memory window (NVIDIA calls it BAR1); 0: unknown
  std::vector<std::string>
      bridges{};  // the bridges above it, from the root port down; traffic between two devices stays below the bridges they share
};

}  // namespace penstock
