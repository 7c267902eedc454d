// Lists RDMA devices from sysfs and chooses one for a GPU. Thread-safe. Reads small files, which can take milliseconds.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace penstock::sys {

struct rdma_port {
  std::string device;  // "mlx5_0"
  unsigned port = 0;
  std::string state;     // "ACTIVE", "DOWN"; empty: unknown
  std::string pci_path;  // the device's path below /sys/devices: "pci0000:3a/0000:3a:01.0/0000:3b:00.0"; empty: not a PCI device
  int numa_node = -1;    // the device's NUMA node; -1: unknown
  bool is_virtual = false;
  [[nodiscard]] bool active() const noexcept { return state == "ACTIVE"; }
};
// Returns the ports, sorted by device, then by port. root: the mount point of sysfs, for tests.
std::vector<rdma_port> list_rdma_ports(const std::string& root = "/sys");

struct nic_choice {
  static constexpr std::size_t most_rails = 4;
  std::string device;  // empty: none
  unsigned port = 0;
  std::string reason;  // why this port was chosen, or why no port was
  // The chosen port and equally good ports of other devices, at most most_rails: "mlx5_0:1".
  std::vector<std::string> rails{};
};
// Chooses an active port for the GPU at this PCI address by these criteria, in order: the device shares the longest part of its PCI path
// with the GPU; the device is on the GPU's NUMA node; it is a physical rather than a virtual function; its name comes first.
nic_choice choose_nic(const std::string& gpu_pci_bus_id, const std::string& root = "/sys");
// Returns why no port is usable; empty if at least one is.
std::string no_rdma(const std::string& root = "/sys");
// Returns how RDMA devices access NVIDIA GPU memory: through a kernel module ("nvidia_peermem" or its predecessor nv_peer_mem), or through
// dma-buf, which NVIDIA's open kernel modules provide; empty if they cannot. The kind of kernel module is read from /proc, next to root.
std::string rdma_door_to_gpus(const std::string& root = "/sys");

}  // namespace penstock::sys
