// Reports what this user's other processes do with Penstock, from their counters in shared memory (/dev/shm/penstock-UID). Does not block
// any process; only requests in flight are queried from the process itself. Free functions; thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/facts.hpp"
#include "penstock/status.hpp"

namespace penstock {

struct process_stats {
  int pid = 0;
  std::string program;           // name of its executable; for Python, also the script's name
  std::string penstock_version;  // the version that the process uses
  bool ended = false;            // true: it exited without closing its counters (for example, it was killed); these are the last values
  engine_stats stats;            // the sum for all its engines, including destroyed ones. by_path: match by name, not by path_kind
  // Up to 64 of the requests in flight; file: the last 120 bytes of the name. Empty if you did not request them, if the process has exited,
  // or if it did not respond within 200 ms because it is stopped (one second for all such processes together).
  std::optional<std::vector<request_info>> requests;
  std::uint64_t requests_not_shown = 0;
};

struct process_list {
  std::vector<process_stats> processes;  // by pid
  std::vector<status> problems;          // running processes whose counters cannot be read, and why
};

// with_requests: include the requests in flight. Errors: not_found (no such process, or it does not use Penstock), permission_denied
// (another user's process), unsupported (another version of Penstock), invalid_argument (its counters are corrupt).
PENSTOCK_API result<process_stats> observe_process(int pid, bool with_requests = true);
// Reports all processes of this user.
PENSTOCK_API process_list observe_processes(bool with_requests = false);

}  // namespace penstock
