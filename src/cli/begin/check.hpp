// What `penstock check` finds out about a file, and its two forms of output. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "machine/finding.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

struct check_plan {
  status error;  // why there is no plan
  plan what;
};

struct check_report {
  std::string file, file_system, device;
  std::uint64_t size = 0;
  check_plan read, write;
  std::vector<device_info> devices;
  std::vector<machine::finding> findings;  // of its drives and its file system
  status cuda;                             // why no GPU is listed
  status error;                            // why nothing is known of this file
};

// Tells what libcufile.so.0 would make of each key of a cufile.json. Returns the exit code.
int check_settings(const std::string& file, bool as_json);

nlohmann::json devices_json(const std::vector<device_info>& devices);
nlohmann::json to_json(const check_report& report);

}  // namespace penstock::cli
