// Reads the information that NVIDIA's kernel module nvidia-fs reports in /proc.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::cufile {

inline constexpr auto nvidia_fs_folder = "/proc/driver/nvidia-fs";

struct nvidia_fs_facts {
  unsigned major_version = 0;  // 0.0: not loaded
  unsigned minor_version = 0;
  std::uint32_t storage = 0;  // bits of CUfileDriverStatusFlags_t: the drivers and file systems registered with it
};

// Blocks. Fields stay zero if the module is not loaded or a line has an unknown format.
nvidia_fs_facts read_nvidia_fs(const std::string& folder);

}  // namespace penstock::cufile
