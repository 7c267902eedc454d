// Reports where each of cuFile's settings comes from. Pure functions, except that they read the file.
#pragma once

#include <string>
#include <vector>

#include "cufile/settings.hpp"

namespace penstock::cufile {

struct sourced_setting {
  std::string_view key;       // its name, not an alias
  std::string value;          // as in cufile.json, strings without quotes
  std::string_view standard;  // the default
  std::string source;         // the file or variable that set it; empty: the default applies
};

struct sourced_settings {
  status problem;  // as from settings_book::open()
  bool file_exists = false;
  std::vector<std::string> refused;  // rejected keys and values, one sentence each
  std::vector<sourced_setting> values;
};

// Returns the values that a driver opened now would use: variables first, then the file, then the defaults. file: the path to open.
// file_name: its name in messages. Blocks.
sourced_settings trace_settings(const environment_lookup& lookup, const std::string& file, const std::string& file_name);

}  // namespace penstock::cufile
