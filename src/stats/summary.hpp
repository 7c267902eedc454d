// Counters in words, for a person who wants to know where the bytes went.
#pragma once

#include <string>

#include "path/registry.hpp"
#include "penstock/facts.hpp"

namespace penstock::stats {

// A line for each path that carried something: "staged: 4.29 GB in 512 pieces at 52.10 GB/s; not direct: nvidia-fs is not loaded".
// gpu_direct: why the direct path can serve no file here; ok when it might. "no bytes were moved" when there is nothing to tell.
std::string summarize(const engine_stats& stats, const path::path_table& paths, const status& gpu_direct);

}  // namespace penstock::stats
