#include "cufile/nvidia_fs.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

#include "cufile/cufile.h"

namespace penstock::cufile {

namespace {

struct module_name {
  std::string_view name;
  CUfileDriverStatusFlags_t storage;
};

// The kernel modules, with the names that nvidia-fs uses.
constexpr module_name module_names[] = {
    {"nvme", CU_FILE_NVME_SUPPORTED},
    {"nvme_rdma", CU_FILE_NVMEOF_SUPPORTED},
    {"scsi_mod", CU_FILE_SCSI_SUPPORTED},
    {"sfxvdriver", CU_FILE_SCALEFLUX_CSD_SUPPORTED},
    {"nvmeib_common", CU_FILE_NVMESH_SUPPORTED},
    {"lnet", CU_FILE_LUSTRE_SUPPORTED},
    {"beegfs", CU_FILE_BEEGFS_SUPPORTED},
    {"mmfslinux", CU_FILE_GPFS_SUPPORTED},
    {"rpcrdma", CU_FILE_NFS_SUPPORTED},
    {"wekafsio", CU_FILE_WEKAFS_SUPPORTED},
    {"scatefs", CU_FILE_SCATEFS_SUPPORTED},
};

// Parses "version: 2.28". A third number may follow.
void read_version(std::string_view line, nvidia_fs_facts& facts) {
  constexpr std::string_view prefix = "version: ";
  if (!line.starts_with(prefix)) return;
  line.remove_prefix(prefix.size());
  nvidia_fs_facts found;
  const auto* const end = line.data() + line.size();
  const auto major = std::from_chars(line.data(), end, found.major_version);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return;
  if (std::from_chars(major.ptr + 1, end, found.minor_version).ec != std::errc()) return;
  facts.major_version = found.major_version;
  facts.minor_version = found.minor_version;
}

}  // namespace

nvidia_fs_facts read_nvidia_fs(const std::string& folder) {
  nvidia_fs_facts facts;
  std::string line;
  std::ifstream version(folder + "/version");
  if (std::getline(version, line)) read_version(line, facts);
  std::ifstream modules(folder + "/modules");
  while (std::getline(modules, line)) {
    const auto name = std::string_view(line).substr(0, line.find(':'));
    const auto* const known = std::ranges::find(module_names, name, &module_name::name);
    if (known != std::end(module_names)) facts.storage |= 1U << known->storage;
  }
  return facts;
}

}  // namespace penstock::cufile
