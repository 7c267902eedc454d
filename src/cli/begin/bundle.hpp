// penstock check --bundle: one file with the information needed to diagnose a machine remotely. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/common/check_machine.hpp"
#include "machine/tree.hpp"
#include "penstock/status.hpp"

namespace penstock::cli {

struct bundle_entry {
  std::string name;  // in the archive
  std::string what;  // short description
  std::string content;
};

struct bundle {
  std::vector<bundle_entry> entries;  // secrets removed; at most 128 KiB each, 4 MiB in total
  std::vector<std::string> unread;    // existing files that could not be read, and entries omitted because of their size
};

// from: must log to `log`, which already contains the files that `known` is based on. files: results for the checked files; null: none.
bundle make_bundle(const machine::tree& from, const machine::tree_log& log, const machine_report& known, const nlohmann::json& files);
// Returns a name with the current time: "penstock-check-20261126-101500.tar".
std::string bundle_name();
// Writes the archive, readable only by its owner. Removes it after an error. Errors: os errors (EEXIST if the file already exists).
result<std::uint64_t> write_bundle(const bundle& made, const std::string& path);

}  // namespace penstock::cli
