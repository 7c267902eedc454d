// Measures the hardware limit for a `penstock io` run, without the engine. One thread; blocks for seconds.
#pragma once

#include <cstdint>
#include <string>

#include "cli/io/io_plan.hpp"

namespace penstock::cli {

struct io_ceiling {
  std::string name;  // "disk, 1024 KiB x 32"
  double gbs = 0;
};

// hot: the data was in the page cache. For a write, uses a temporary file next to `path`. Errors: os errors; unsupported without io_uring
// or O_DIRECT; no_space; cancelled.
result<io_ceiling> measure_ceiling(const io_plan& plan, const std::string& device, const std::string& path, std::uint64_t bytes, bool hot);

}  // namespace penstock::cli
