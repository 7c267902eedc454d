// Whether the denylist of cufile.json names what a file lies on. Reads /proc and /sys.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cufile/settings_data.hpp"

namespace penstock::cufile {

// What a file lies on, as far as the kernel tells; what it does not stays empty.
struct file_place {
  std::string mount;                 // "/data"
  std::string filesystem;            // "ext4"
  std::vector<std::string> devices;  // "/dev/nvme0n1p1", and the disk of that partition
  std::string driver;                // of the device: "nvme"
};

// Of the mount with that id, in the text of /proc/self/mountinfo.
std::optional<file_place> find_mount(std::string_view mountinfo, std::string_view mount_id);
file_place place_of(int descriptor);

// Half a sentence, why such a file is never GPU-direct; empty: it is not denied.
std::string denial(const deny_lists& denied, const file_place& place);

}  // namespace penstock::cufile
