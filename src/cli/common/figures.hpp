// Duration, CPU time and path of a file transfer, as text and as JSON. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "penstock/status.hpp"

namespace penstock::cli {

struct figures {
  std::uint64_t bytes = 0;
  double seconds = 0;         // transfers only
  double cpu_seconds = 0;     // transfers only
  std::string path;           // the path that transferred the bytes; if several, each with its share
  std::optional<bool> equal;  // with --verify
  status error;
};

// Returns "1 GiB in 0.023 s, 46.68 GB/s, 0.210 CPU s/GB, path staged, verified". Omits the speed below 1 MiB, where it is meaningless.
std::string describe(const figures& told);
// Returns {"file": ..., "bytes": ..., "seconds": ..., "gb_per_s": ..., "cpu_s_per_gb": ..., "path": ..., "verified": ..., "error": ...}.
// Speeds are null if no time passed, verified is null without --verify, and error is null on success.
nlohmann::json to_json(const std::string& file, const figures& told);

}  // namespace penstock::cli
