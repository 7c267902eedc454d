// A machine's PCI devices that move data, and the bridges above them. Thread-safe; reads small files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/tree.hpp"
#include "penstock/machine.hpp"

namespace penstock::machine {

struct pci_link {
  double gigatransfers = 0;  // per second and lane; 0: unknown
  unsigned lanes = 0;
  [[nodiscard]] bool known() const noexcept { return gigatransfers > 0 && lanes > 0; }
  [[nodiscard]] double gigabits() const noexcept;  // per second, without encoding overhead
};
std::string to_string(const pci_link& link);  // "32 GT/s x16"

enum class acs_state : std::uint8_t {
  none = 0,  // the port lacks the capability
  off,
  on,      // redirects requests or completions upstream, or validates sources
  hidden,  // the kernel shows the registers only to root
};

struct pci_bridge {
  std::string address;
  bool is_switch = false;  // an upstream or downstream port; false: a root port or unknown
  acs_state acs = acs_state::hidden;
  pci_link most;
};

struct pci_facts {
  pci_device basics;
  unsigned vendor = 0;
  unsigned model = 0;      // device ID of that vendor: "device" in sysfs
  std::string driver;      // "nvidia", "vfio-pci"; empty: none
  std::string iommu_type;  // type of its group: "identity", "DMA-FQ"; empty: no group, or the kernel does not show it
  bool is_nvme = false;
  bool has_iommu_group = false;
  pci_link now, most;
  std::vector<pci_bridge> bridges;  // from the root port down
};
// Returns the domain and bus of the device's root port, "0000:3a": devices with the same value share a root complex.
std::string root_bus(const pci_facts& device);
inline constexpr unsigned nvidia_vendor = 0x10de;
inline constexpr unsigned mellanox_vendor = 0x15b3;

// Returns GPUs, network cards and drives, sorted by address.
std::vector<pci_facts> gather_pci(const tree& from);

}  // namespace penstock::machine
