// Facts about the machine under test. Free functions that read /proc and ask the kernel; safe from any thread. They return "unknown" if
// there is no source.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/status.hpp"

namespace penstock::bench {

std::string utc_date();            // "2026-11-21 11:53 UTC"
std::string kernel_release();      // "6.18.44"
std::string cpu_model();           // "Intel(R) Xeon(R) Platinum 8480+"
unsigned usable_cores();           // in the affinity mask
std::string gpu_driver_version();  // "580.95.05", or "none"
// Returns the type of the mounted file system that holds the path: "ext4", "tmpfs", "overlay".
std::string file_system_of(const std::string& path);
// Returns how much host memory this process can still use without swapping, in bytes, within the limits of its cgroups. Errors:
// unsupported.
result<std::uint64_t> available_memory();

}  // namespace penstock::bench
