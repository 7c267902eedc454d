// Reads the beginnings of files, and names files that are not the expected kind of model. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/file_kinds.hpp"

namespace penstock::tensors {

// Extends `to` to the first `bytes` bytes of the file, or to the whole file if it is shorter. Blocks. Errors: those of file::read.
status read_beginning(const file& from, std::string& to, std::uint64_t bytes);

// Returns an error if the file is the result of a failed download or another kind of file, otherwise nothing. wanted: the word of the
// expected kind.
std::optional<status> known_stand_in(const file& from, std::string_view wanted);

}  // namespace penstock::tensors
