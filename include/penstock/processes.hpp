// What other processes of this user do with Penstock, read from the boards that they have in shared memory (/dev/shm/penstock-UID). Nobody
// is held up, and nothing is asked of a process but its table of requests under way. Free functions; thread-safe.
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
  std::string program;           // its file name; with that of the script, for Python
  std::string penstock_version;  // that it runs
  bool ended = false;            // without closing: it was killed, say. These are its last figures
  engine_stats stats;            // of all its engines, also those that are gone. by_path: by name, not by path_kind
  // Up to 64 of the requests under way; file: the last 120 bytes of the name. None where they were not asked for, where the process has
  // ended, or where it did not answer within 200 ms (it is stopped, say; of many such all together are given a second).
  std::optional<std::vector<request_info>> requests;
  std::uint64_t requests_not_shown = 0;
};

struct process_list {
  std::vector<process_stats> processes;  // by pid
  std::vector<status> problems;          // of processes that run and cannot be read, and why
};

// with_requests: also the requests under way. Errors: not_found (no such process, or it does not use Penstock), permission_denied (another
// user's), unsupported (of another version of Penstock), invalid_argument (its board makes no sense).
PENSTOCK_API result<process_stats> observe_process(int pid, bool with_requests = true);
// All of this user.
PENSTOCK_API process_list observe_processes(bool with_requests = false);

}  // namespace penstock
