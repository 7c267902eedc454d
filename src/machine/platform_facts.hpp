// What the kernel reports about a machine, except its PCI devices. Thread-safe; reads small files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/pci_facts.hpp"
#include "machine/tree.hpp"
#include "sys/feature_probe.hpp"
#include "sys/rdma.hpp"

namespace penstock::machine {

struct gpu_facts {
  std::string address;
  std::string name;  // from its driver; empty: the driver does not support it
  std::string node;  // "/dev/nvidia0"; empty: unknown
  bool node_exists = false;
  sys::nic_choice nic;     // the nearest active port
  std::string capability;  // "9.0"; empty: CUDA was not queried or does not see the GPU
};

struct nic_port_facts {
  sys::rdma_port port;
  std::string link_mode;  // "InfiniBand", "Ethernet"
  std::string rate;       // "400 Gb/sec (4X NDR)"
};

struct nvidia_fs_state {
  std::string version;               // empty: not loaded
  std::vector<std::string> drivers;  // modules registered with nvidia-fs
  bool has_nodes = false;
  std::vector<std::string> errors;                     // statistics lines with a non-zero error count
  std::optional<std::uint64_t> shadow_mib, processes;  // size of registered buffers; processes that have it open
  [[nodiscard]] bool loaded() const noexcept { return !version.empty(); }
  [[nodiscard]] bool serves(std::string_view driver) const;
};

enum class p2pdma_kernel : std::uint8_t { unknown = 0, built, missing };

struct limit_facts {
  std::optional<std::uint64_t> soft;  // empty: unlimited
  bool known = false;
};

// Returns the architecture as uname -m prints it, such as "aarch64"; empty if the files of another machine do not contain it.
std::string architecture_of(const tree& from);

struct platform_facts {
  std::string release, architecture, command_line;
  bool is_wsl = false;
  bool is_root = false;
  bool may_lock_all = false;            // CAP_IPC_LOCK
  std::vector<std::string> numa_nodes;  // "0", "1"
  std::vector<std::string> iommus;      // names in /sys/class/iommu
  std::vector<pci_facts> devices;
  std::vector<gpu_facts> gpus;  // the NVIDIA GPUs among the devices
  std::string driver_version;   // version of NVIDIA's kernel module; empty: not loaded
  bool open_driver = false;     // NVIDIA's open kernel modules are loaded
  bool static_bar1 = false;     // RMForceStaticBar1=1
  bool combines_writes = true;  // RmForceDisableIomapWC is not 1
  std::optional<bool> kaslr;    // the kernel's address is randomized
  bool nvme_multipath = false;
  p2pdma_kernel p2pdma = p2pdma_kernel::unknown;
  nvidia_fs_state nvidia_fs;
  std::vector<nic_port_facts> ports;
  std::string peermem;  // how network cards access GPU memory: "nvidia_peermem"; empty: they cannot
  std::optional<std::uint64_t> io_uring_disabled;
  sys::kernel_features features;
  std::string container;  // kind of container; empty: none
  std::string seccomp;    // "off", "strict", "filter", "unknown"
  bool has_udev = false;
  std::optional<unsigned> quota_cores;
  std::optional<unsigned> cores;  // online, and within the quota
  std::optional<std::uint64_t> memory_limit_bytes;
  limit_facts locked_memory, open_files;

  [[nodiscard]] bool gpu_direct() const { return nvidia_fs.loaded() || (static_bar1 && p2pdma != p2pdma_kernel::missing); }
  // Returns true if the kernel and the driver's modules appear to support it.
  [[nodiscard]] bool lends_dma_bufs() const { return features.dma_buf == 0 && open_driver; }
  [[nodiscard]] bool has_active_port() const;
  [[nodiscard]] const pci_facts* device_at(std::string_view address) const;  // null: no such device
};

nvidia_fs_state gather_nvidia_fs(const tree& from);
// If from is this machine, also checks which system calls the kernel allows.
platform_facts gather_platform(const tree& from);

}  // namespace penstock::machine
