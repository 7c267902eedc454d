// RDMA devices, from sysfs, and which of them serves a GPU. Thread-safe; reads small files, and may take milliseconds.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace penstock::sys {

struct rdma_port {
  std::string device;  // "mlx5_0"
  unsigned port = 0;
  std::string state;     // "ACTIVE", "DOWN"; empty: not known
  std::string pci_path;  // of its device, below /sys/devices: "pci0000:3a/0000:3a:01.0/0000:3b:00.0"; empty: it is none of PCI
  int numa_node = -1;    // likewise
  bool is_virtual = false;
  [[nodiscard]] bool active() const noexcept { return state == "ACTIVE"; }
};
// By device, then by port. root: where sysfs is mounted, for tests.
std::vector<rdma_port> list_rdma_ports(const std::string& root = "/sys");

struct nic_choice {
  static constexpr std::size_t most_rails = 4;
  std::string device;  // empty: none
  unsigned port = 0;
  std::string reason;  // which and why, or why none
  // That one, and those that are as good: ports of further devices, at most so many, "mlx5_0:1".
  std::vector<std::string> rails{};
};
// For a GPU at this PCI address: of the active ports the one whose device shares the longest part of its PCI path with the GPU; then one of
// the GPU's NUMA node; then a physical function before a virtual one; then the first by name.
nic_choice choose_nic(const std::string& gpu_pci_bus_id, const std::string& root = "/sys");
// Why there is no port by which anything could be sent; empty when there is one.
std::string no_rdma(const std::string& root = "/sys");
// By what RDMA devices reach memory of NVIDIA's GPUs: a kernel module ("nvidia_peermem", or nv_peer_mem before it), or dma-buf, by which
// the open kernel modules of NVIDIA's driver lend it; empty: by nothing. Whether they are open stands in /proc, beside root.
std::string rdma_door_to_gpus(const std::string& root = "/sys");

}  // namespace penstock::sys
