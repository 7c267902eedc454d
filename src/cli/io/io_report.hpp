// What `penstock io` says of a run. Free functions; safe from any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/io/io_run.hpp"

namespace penstock::cli {

// gdsio's line, without a line feed: programs read it. total or one of its jobs.
std::string gdsio_line(const io_figures& run, const io_job_figures& part);
// What gdsio does not tell, a line each.
std::vector<std::string> describe(const io_figures& run);
nlohmann::json to_json(const io_figures& run);

}  // namespace penstock::cli
