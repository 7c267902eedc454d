// The page that `penstock bench --report` writes, generated from the JSON of a run: one file, without scripts or external resources. One
// thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "penstock/status.hpp"

namespace penstock::cli {

// report: the output of `penstock bench --json`; missing parts are omitted from the page. Errors: invalid_argument if it is not such a
// report.
result<std::string> render_report(const nlohmann::json& report);

// --- parts of render_report: HTML; empty if there is nothing to show

std::string report_figures(const nlohmann::json& report);
std::string report_peers(const nlohmann::json& report);
std::string report_tables(const nlohmann::json& report);
std::string peer_tables(const nlohmann::json& report);
std::string report_machine(const nlohmann::json& report);
extern const char* const report_style;

// Return a number from the report, or 0; or a string, or an empty one. A value that is null or has another type is treated as missing.
double number_in(const nlohmann::json& object, const char* name);
std::string text_in(const nlohmann::json& object, const char* name);
// Returns a number of bytes; 0 if the value cannot be one.
std::uint64_t bytes_in(const nlohmann::json& object, const char* name);
// Returns a list, which may be empty.
const nlohmann::json& list_in(const nlohmann::json& object, const char* name);

}  // namespace penstock::cli
