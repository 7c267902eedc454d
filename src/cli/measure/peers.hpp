// Other libraries beside Penstock, for the report: bench/report_peers.py, run by a Python that has them. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace penstock::cli {

struct peer_request {
  std::string python = "python3";  // a name on PATH, or a file
  std::string file, device;
  std::vector<std::uint64_t> sizes;
  bool quick = false;
};

// bench/report_peers.py, which this command carries.
extern const char* const peers_program;

// The list "peers" of a report: for each library what was measured, or why not and how to install it. Blocks for up to a few minutes; ends
// the program when this process is interrupted. Where no Python runs, the list says so.
nlohmann::json measure_peers(const peer_request& wanted);

}  // namespace penstock::cli
