// penstock check --bundle: what somebody who helps from afar needs to know of a machine, in one file. One thread.
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
  std::string what;  // in a few words
  std::string content;
};

struct bundle {
  std::vector<bundle_entry> entries;  // without secrets, each of at most 128 KiB, 4 MiB in all
  std::vector<std::string> unread;    // files that are there and may not be read; what was left out for its size
};

// from: keeps a log, which holds what `known` has been judged from. files: what was found out about files; null: none were asked about.
bundle make_bundle(const machine::tree& from, const machine::tree_log& log, const machine_report& known, const nlohmann::json& files);
// "penstock-check-20261126-101500.tar": by the time that it is.
std::string bundle_name();
// Makes the archive, readable to its owner alone. Nothing is left of it after an error: os errors, also where the file exists.
result<std::uint64_t> write_bundle(const bundle& made, const std::string& path);

}  // namespace penstock::cli
