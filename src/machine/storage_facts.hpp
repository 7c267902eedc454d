// A machine's file systems that contain data, and the drives below them. Thread-safe; reads small files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/lustre_facts.hpp"
#include "machine/tree.hpp"

namespace penstock::machine {

struct drive_facts {
  std::string name;  // "nvme0n1"
  std::string model;
  std::string transport;  // "pcie", "rdma", "tcp"; empty: not NVMe
  std::string scheduler;  // active scheduler
  bool is_nvme = false;
  bool rotates = false;
  std::optional<std::uint64_t> max_kib, can_kib, depth;
};

struct mount_facts {
  std::string point, type, source;
  std::string options;                                            // options of the mount and the file system, comma-separated
  std::vector<std::string> drives;                                // names; also those below md and dm
  std::string raid;                                               // "raid0" if the drives form an md array; otherwise empty
  bool mapped = false;                                            // uses the device mapper: LVM, multipath, encryption
  std::string journal_mode;                                       // ext4 journal mode: "ordered", if the mount or the kernel shows it
  [[nodiscard]] bool has_option(std::string_view name) const;     // "ro"
  [[nodiscard]] std::string option(std::string_view name) const;  // value of "name=value"; empty: none
};

struct file_facts {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint64_t stored_bytes = 0;  // smaller if the file has holes
};

struct storage_facts {
  std::vector<mount_facts> mounts;
  std::map<std::string, drive_facts> drives;  // by name
  lustre_facts lustre;
  std::string rdma_driver_version;  // version of MLNX_OFED or DOCA; empty: the kernel's own drivers
};

storage_facts gather_storage(const tree& from);
// Returns the mount that contains a path, or null. If two mounts share a mount point, returns the later one. path must be absolute, without
// links.
const mount_facts* mount_of(const storage_facts& known, const std::string& path);

}  // namespace penstock::machine
