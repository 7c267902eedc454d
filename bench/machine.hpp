// What the figures were measured on. Free functions that read /proc and ask the kernel; safe from any thread; "unknown" where nothing
// tells.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/status.hpp"

namespace penstock::bench {

std::string utc_date();            // "2026-11-21 11:53 UTC"
std::string kernel_release();      // "6.18.44"
std::string cpu_model();           // "Intel(R) Xeon(R) Platinum 8480+"
unsigned usable_cores();           // of the affinity mask
std::string gpu_driver_version();  // "580.95.05", or "none"
// The type of the file system that holds the path, as mounted: "ext4", "tmpfs", "overlay".
std::string file_system_of(const std::string& path);
// Memory of the host that this process may still take without swapping, in bytes, limits of its cgroups included. Errors: unsupported.
result<std::uint64_t> available_memory();

}  // namespace penstock::bench
