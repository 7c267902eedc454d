// What Penstock knows of the machine it runs on. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

enum class pci_kind : std::uint8_t { other = 0, gpu, storage, network };

// A PCI device, as sysfs describes it; what sysfs does not tell stays as below.
struct pci_device {
  std::string address;  // "0000:3b:00.0"
  pci_kind kind = pci_kind::other;
  int numa_node = -1;                  // -1: not known
  std::uint64_t window_bytes = 0;      // its largest memory window: BAR1 in NVIDIA's words. 0: not known
  std::vector<std::string> bridges{};  // above it, from the root port down: two devices that share some reach each other below those
};

}  // namespace penstock
