// Identifies processes by more than their PID. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/status.hpp"

namespace penstock::sys {

// Distinguishes a process from later ones with the same PID and from those in other PID namespaces.
struct process_identity {
  int pid = 0;
  std::uint64_t start_ticks = 0;  // start time in clock ticks since boot, from /proc/PID/stat
  std::uint64_t namespace_inode = 0;
  friend bool operator==(const process_identity&, const process_identity&) = default;
};

// Errors: not_found (no such process), io (/proc is not readable).
result<process_identity> identify_process(int pid);
result<process_identity> identify_own_process();
// Returns the file name of the process's program; for a Python interpreter, also that of the script. Empty if unknown.
std::string program_name(int pid);
// Returns the process's user ID. Errors: not_found.
result<unsigned> owner_of_process(int pid);

}  // namespace penstock::sys
