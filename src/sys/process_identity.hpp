// Which process is meant by a number. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/status.hpp"

namespace penstock::sys {

// What tells a process from a later one of the same number, and from one of another PID namespace.
struct process_identity {
  int pid = 0;
  std::uint64_t start_ticks = 0;  // of the machine's clock, as in /proc/PID/stat
  std::uint64_t namespace_inode = 0;
  friend bool operator==(const process_identity&, const process_identity&) = default;
};

// Errors: not_found (no such process), io (/proc cannot be read).
result<process_identity> identify_process(int pid);
result<process_identity> identify_own_process();
// The file name of its program; of an interpreter of Python also that of the script. Empty where it is not known.
std::string program_name(int pid);
// Errors: not_found.
result<unsigned> owner_of_process(int pid);

}  // namespace penstock::sys
