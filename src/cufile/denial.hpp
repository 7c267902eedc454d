// Checks whether the denylist of cufile.json covers a file's storage. Reads /proc and /sys.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cufile/settings_data.hpp"

namespace penstock::cufile {

// The storage of a file as reported by the kernel; unknown fields are empty.
struct file_place {
  std::string mount;                 // "/data"
  std::string filesystem;            // "ext4"
  std::vector<std::string> devices;  // "/dev/nvme0n1p1", and the partition's disk
  std::string driver;                // the device's driver: "nvme"
};

// Finds the mount with this id in the text of /proc/self/mountinfo.
std::optional<file_place> find_mount(std::string_view mountinfo, std::string_view mount_id);
file_place place_of(int descriptor);

// Returns a clause that explains why such a file is never GPU-direct; empty: not denied.
std::string denial(const deny_lists& denied, const file_place& place);

}  // namespace penstock::cufile
