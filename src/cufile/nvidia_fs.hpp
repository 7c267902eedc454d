// Reads what NVIDIA's kernel module nvidia-fs reports in /proc.
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

// Blocks. Without the module, and for lines in an unknown format, the fields stay zero.
nvidia_fs_facts read_nvidia_fs(const std::string& folder);

}  // namespace penstock::cufile
