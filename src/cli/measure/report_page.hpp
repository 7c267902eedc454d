// The page that `penstock bench --report` writes, made of the JSON of a run: one file, without scripts, that loads nothing. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "penstock/status.hpp"

namespace penstock::cli {

// The report is what `penstock bench --json` writes; what it does not hold is left out of the page. Errors: invalid_argument when it is no
// such report.
result<std::string> render_report(const nlohmann::json& report);

// --- its parts, for render_report: HTML, or nothing where there is nothing to show

std::string report_figures(const nlohmann::json& report);
std::string report_peers(const nlohmann::json& report);
std::string report_tables(const nlohmann::json& report);
std::string peer_tables(const nlohmann::json& report);
std::string report_machine(const nlohmann::json& report);
extern const char* const report_style;

// A number of the report, or 0; a text of it, or nothing: what is null or of another kind counts as missing.
double number_in(const nlohmann::json& object, const char* name);
std::string text_in(const nlohmann::json& object, const char* name);
// A number of bytes of it; 0 where it can be none.
std::uint64_t bytes_in(const nlohmann::json& object, const char* name);
// A list of it, which may be empty.
const nlohmann::json& list_in(const nlohmann::json& object, const char* name);

}  // namespace penstock::cli
