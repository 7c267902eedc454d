// penstock check without a file: findings about the machine, its libraries and its file systems. One thread.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "machine/finding.hpp"
#include "machine/library_facts.hpp"
#include "machine/platform_facts.hpp"
#include "machine/storage_facts.hpp"
#include "machine/tree.hpp"

namespace penstock::cli {

// The results of all checks.
struct machine_report {
  machine::platform_facts platform;
  machine::library_facts libraries;
  machine::storage_facts storage;
  machine::findings findings;
};
machine_report examine(const machine::tree& from);
// Returns the findings that affect a file: about its file system, the drives below it, and its holes. Queries the kernel about the file.
std::vector<machine::finding> findings_of_file(const machine_report& report, const std::string& file);
// Returns names and versions, such as "nvidia_fs" and "2.28". An empty version means that the component is missing.
std::vector<std::pair<std::string, std::string>> versions(const machine_report& report);

// Selects what to print.
struct machine_view {
  bool findings = true;
  bool versions = false;
  bool topology = false;
  bool quiet = false;  // only findings that require action
};

nlohmann::json findings_json(const std::vector<machine::finding>& all);
nlohmann::json to_json(const machine_report& report, const machine_view& view);
void print_findings(const std::vector<machine::finding>& all, bool quiet);
void print_report(const machine_report& report, const machine_view& view);
// Prints docs/reference/check.md.
void print_catalogue();
nlohmann::json catalogue_json();

}  // namespace penstock::cli
