// What moving a file took, as people and programs read it. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "penstock/status.hpp"

namespace penstock::cli {

struct figures {
  std::uint64_t bytes = 0;
  double seconds = 0;         // of the transfers alone
  double cpu_seconds = 0;     // likewise
  std::string path;           // that carried the bytes; several with their shares
  std::optional<bool> equal;  // with --verify
  status error;
};

// "1 GiB in 0.023 s, 46.68 GB/s, 0.210 CPU s/GB, path staged, verified". Of less than 1 MiB a speed would say nothing, and is left out.
std::string describe(const figures& told);
// {"file": ..., "bytes": ..., "seconds": ..., "gb_per_s": ..., "cpu_s_per_gb": ..., "path": ..., "verified": ..., "error": ...}: speeds are
// null where no time passed, verified where that was not asked for, error where there is none.
nlohmann::json to_json(const std::string& file, const figures& told);

}  // namespace penstock::cli
