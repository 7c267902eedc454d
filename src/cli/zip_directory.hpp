// The list of what a zip file holds: a checkpoint of torch.save is one, with its tensors stored as they are. zip64, so of any size; one
// volume. Blocks where the file does. Safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock::cli {

struct zip_member {
  std::string name;
  std::uint64_t bytes = 0;         // of what it holds
  std::uint64_t packed_bytes = 0;  // in the file
  std::uint64_t offset = 0;        // of these, in the file
  bool stored = false;             // as they are, not compressed
};

// Whether a file begins as a zip file does: with a member, or, where it is empty, with its end.
bool is_zip(const file& from);
// In the order of the file's own list. Errors: invalid_argument for what is no zip file, or a damaged one, and those of reading.
result<std::vector<zip_member>> read_zip_directory(const file& from);

}  // namespace penstock::cli
