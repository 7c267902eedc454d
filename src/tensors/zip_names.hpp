// The names in a zip archive. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "penstock/engine.hpp"
#include "penstock/status.hpp"

namespace penstock::tensors {

// Returns the names of the members without reading the members; if the directory is damaged, the name of the first member. Blocks. Errors:
// those of file::read.
result<std::vector<std::string>> zip_member_names(const file& from);

}  // namespace penstock::tensors
