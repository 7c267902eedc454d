// Results of `penstock check` for a file, and their output as text and as JSON. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "machine/finding.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

struct check_plan {
  status error;  // the reason if there is no plan
  plan what;
};

struct check_report {
  std::string file, file_system, device;
  std::uint64_t size = 0;
  check_plan read, write;
  std::vector<device_info> devices;
  std::vector<machine::finding> findings;  // about its drives and its file system
  status cuda;                             // the reason if no GPU is listed
  status error;                            // the reason if the file could not be checked
};

// Prints what libcufile.so.0 does with each key of a cufile.json. Returns the exit code.
int check_settings(const std::string& file, bool as_json);

nlohmann::json devices_json(const std::vector<device_info>& devices);
nlohmann::json to_json(const check_report& report);

}  // namespace penstock::cli
