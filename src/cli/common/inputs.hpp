// The files that a command line means. Free functions; safe from any thread.
#pragma once

#include <string>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::cli {

struct input {
  std::string name;
  status error;  // why the files of this folder are not, or not all, among the inputs
};

// Each name as it stands; in place of a folder all regular files in it and below, sorted by name. Links to files are followed, links to
// folders are not. Whether a file can be opened shows later.
std::vector<input> expand_folders(const std::vector<std::string>& names);

}  // namespace penstock::cli
