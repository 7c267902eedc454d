// The input files of a command line. Free functions; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::cli {

struct input {
  std::string name;
  status error;  // the reason if files of this folder are missing from the inputs
};

// Returns each file name as given and, for each folder, all regular files in and below it, sorted by name. Follows links to files, but not
// links to folders. Does not check whether a file can be opened.
std::vector<input> expand_folders(const std::vector<std::string>& names);

}  // namespace penstock::cli
