// Measures other libraries for the report with bench/report_peers.py, in a Python that has them installed. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace penstock::cli {

struct peer_request {
  std::string python = "python3";  // a name on PATH, or a file name
  std::string file, device;
  std::vector<std::uint64_t> sizes;
  bool quick = false;
};

// The text of bench/report_peers.py, embedded in this command.
extern const char* const peers_program;

// Returns the list "peers" of a report: for each library, its figures, or the reason why there are none and how to install it. Blocks for
// up to a few minutes. An interrupt of this process also terminates the Python program. If Python cannot be started, the list contains the
// reason.
nlohmann::json measure_peers(const peer_request& wanted);

}  // namespace penstock::cli
