// The file systems of a machine that hold data, and the drives below them. Thread-safe; reads small files.
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
  std::string transport;  // "pcie", "rdma", "tcp"; empty: no NVMe
  std::string scheduler;  // the chosen one
  bool is_nvme = false;
  bool rotates = false;
  std::optional<std::uint64_t> max_kib, can_kib, depth;
};

struct mount_facts {
  std::string point, type, source;
  std::string options;                                            // of the mount and of the file system, comma-separated
  std::vector<std::string> drives;                                // names; below md and dm too
  std::string raid;                                               // "raid0" where the drives form an md array; empty otherwise
  bool mapped = false;                                            // by the device mapper: LVM, multipath, encryption
  std::string journal_mode;                                       // of ext4: "ordered", where mount or kernel tells
  [[nodiscard]] bool has_option(std::string_view name) const;     // "ro"
  [[nodiscard]] std::string option(std::string_view name) const;  // of "name=value"; empty: none
};

struct file_facts {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint64_t stored_bytes = 0;  // less where it has holes
};

struct storage_facts {
  std::vector<mount_facts> mounts;
  std::map<std::string, drive_facts> drives;  // by name
  lustre_facts lustre;
  std::string rdma_driver_version;  // of MLNX_OFED or DOCA; empty: the drivers of the kernel
};

storage_facts gather_storage(const tree& from);
// The mount that a path lies in, or null: of two on one point the later one is seen. path: absolute, without links.
const mount_facts* mount_of(const storage_facts& known, const std::string& path);

}  // namespace penstock::machine
