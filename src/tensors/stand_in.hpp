// Recognizes, from their first bytes, files that are not the expected kind of model. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/engine.hpp"
#include "penstock/status.hpp"

namespace penstock::tensors {

// Extends `to` to the first `bytes` bytes of the file, or to the whole file if it is shorter. Blocks. Errors: those of file::read.
status read_beginning(const file& from, std::string& to, std::uint64_t bytes);

// Returns an error if the file is the result of a failed download or a model of another kind, otherwise nothing. wanted: the expected kind,
// such as "safetensors".
std::optional<status> known_stand_in(const std::string& path, std::string_view beginning, std::string_view wanted);

}  // namespace penstock::tensors
