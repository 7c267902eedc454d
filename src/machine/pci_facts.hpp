// The PCI devices of a machine that move data, and the bridges above them. Thread-safe; reads small files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine/tree.hpp"
#include "penstock/machine.hpp"

namespace penstock::machine {

struct pci_link {
  double gigatransfers = 0;  // per second and lane; 0: not known
  unsigned lanes = 0;
  [[nodiscard]] bool known() const noexcept { return gigatransfers > 0 && lanes > 0; }
  [[nodiscard]] double gigabits() const noexcept;  // per second, without what its encoding takes
};
std::string to_string(const pci_link& link);  // "32 GT/s x16"

enum class acs_state : std::uint8_t {
  none = 0,  // the port has no such capability
  off,
  on,      // requests or completions between devices go up, or sources are checked
  hidden,  // the kernel shows its registers to root only
};

struct pci_bridge {
  std::string address;
  bool is_switch = false;  // an upstream or downstream port; false: a root port, or not known
  acs_state acs = acs_state::hidden;
  pci_link most;
};

struct pci_facts {
  pci_device basics;
  unsigned vendor = 0;
  unsigned model = 0;      // of that vendor: the "device" of sysfs
  std::string driver;      // "nvidia", "vfio-pci"; empty: none
  std::string iommu_type;  // of its group: "identity", "DMA-FQ"; empty: no group, or the kernel does not tell
  bool is_nvme = false;
  bool has_iommu_group = false;
  pci_link now, most;
  std::vector<pci_bridge> bridges;  // from the root port down
};
// Domain and bus that the device's root port is on, "0000:3a": devices of one are of one root complex.
std::string root_bus(const pci_facts& device);
inline constexpr unsigned nvidia_vendor = 0x10de;
inline constexpr unsigned mellanox_vendor = 0x15b3;

// GPUs, network cards and drives; sorted by address.
std::vector<pci_facts> gather_pci(const tree& from);

}  // namespace penstock::machine
