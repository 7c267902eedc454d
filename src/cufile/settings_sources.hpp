// Where each of cuFile's settings comes from, for those who want to know. Pure functions but for the file that they read.
#pragma once

#include <string>
#include <vector>

#include "cufile/settings.hpp"

namespace penstock::cufile {

struct sourced_setting {
  std::string_view key;       // its name, not an alias
  std::string value;          // as cufile.json writes it, texts without quotes
  std::string_view standard;  // the default
  std::string source;         // the file or the variable that it comes from; empty: it is the default
};

struct sourced_settings {
  status problem;  // as settings_book::open() tells it
  bool file_exists = false;
  std::vector<std::string> refused;  // keys and values that are not taken, a sentence each
  std::vector<sourced_setting> values;
};

// What a driver that opens now would take: variables before the file before the defaults. file: where it can be opened; file_name: what it
// is called in what is said of it. Blocks.
sourced_settings trace_settings(const environment_lookup& lookup, const std::string& file, const std::string& file_name);

}  // namespace penstock::cufile
