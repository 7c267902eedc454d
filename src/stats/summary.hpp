// Describes counters in words, for a person who wants to know how the bytes were transferred.
#pragma once

#include <string>

#include "path/registry.hpp"
#include "penstock/facts.hpp"

namespace penstock::stats {

// Returns a line for each path that transferred bytes: "staged: 4.29 GB in 512 pieces at 52.10 GB/s; not direct: nvidia-fs is not loaded",
// or "no bytes were moved". gpu_direct: why the direct path can serve no file here; ok if it might.
std::string summarize(const engine_stats& stats, const path::path_table& paths, const status& gpu_direct);

}  // namespace penstock::stats
