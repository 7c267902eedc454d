// The beginnings of files, and what stands at times where a model should be. Free functions; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/engine.hpp"
#include "penstock/status.hpp"

namespace penstock::tensors {

// Reads on until `to` has the first `bytes` bytes of the file, or all that are there. Blocks. Errors: of file::read.
status read_beginning(const file& from, std::string& to, std::uint64_t bytes);

// Says what a download leaves in place of a model, where it went wrong, or that the file is a model of another kind; nothing where the
// beginning is none of these. wanted: what the file was to be, such as "safetensors".
std::optional<status> known_stand_in(const std::string& path, std::string_view beginning, std::string_view wanted);

}  // namespace penstock::tensors
