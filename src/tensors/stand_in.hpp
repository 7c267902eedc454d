// Recognizes files that are not the expected model, from their first bytes. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/engine.hpp"
#include "penstock/status.hpp"

namespace penstock::tensors {

// Extends `to` to the first `bytes` bytes of the file, or to all of a shorter file. Blocks. Errors: those of file::read.
status read_beginning(const file& from, std::string& to, std::uint64_t bytes);

// Returns an error if the file is what a failed download leaves in place of a model, or a model of another kind; otherwise nothing. wanted:
// the expected kind, such as "safetensors".
std::optional<status> known_stand_in(const std::string& path, std::string_view beginning, std::string_view wanted);

}  // namespace penstock::tensors
