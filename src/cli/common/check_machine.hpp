// penstock check without a file: what there is to say of the machine, of its libraries and of its file systems. One thread.
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

// All that has been found out.
struct machine_report {
  machine::platform_facts platform;
  machine::library_facts libraries;
  machine::storage_facts storage;
  machine::findings findings;
};
machine_report examine(const machine::tree& from);
// What of it concerns a file: its file system, the drives below that, and its holes. Asks the kernel about the file.
std::vector<machine::finding> findings_of_file(const machine_report& report, const std::string& file);
// Names and versions: "nvidia_fs" and "2.28"; an empty version is none.
std::vector<std::pair<std::string, std::string>> versions(const machine_report& report);

// What of it is printed.
struct machine_view {
  bool findings = true;
  bool versions = false;
  bool topology = false;
  bool quiet = false;  // of the findings only those that need something to be done
};

nlohmann::json findings_json(const std::vector<machine::finding>& all);
nlohmann::json to_json(const machine_report& report, const machine_view& view);
void print_findings(const std::vector<machine::finding>& all, bool quiet);
void print_report(const machine_report& report, const machine_view& view);
// docs/reference/check.md.
void print_catalogue();
nlohmann::json catalogue_json();

}  // namespace penstock::cli
