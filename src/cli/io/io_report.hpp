// The text output of `penstock io`. Free functions; thread-safe.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/io/io_run.hpp"

namespace penstock::cli {

// Returns gdsio's line, without a line feed, in the format that programs parse. part: the total or one of the jobs.
std::string gdsio_line(const io_figures& run, const io_job_figures& part);
// Returns lines with figures that gdsio does not report.
std::vector<std::string> describe(const io_figures& run);
nlohmann::json to_json(const io_figures& run);

}  // namespace penstock::cli
