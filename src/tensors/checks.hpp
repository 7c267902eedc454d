// Checks of names and metadata, and their form in messages. Free functions; thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"
#include "penstock/tensors.hpp"

namespace penstock::tensors {

// The reserved key of the format's metadata; no tensor can have this name.
inline constexpr std::string_view metadata_key = "__metadata__";

// Returns "tensor "name"", safe to print on a terminal; a very long name is shortened.
std::string tensor_called(std::string_view name);
// The same for other strings, without "tensor".
std::string quoted(std::string_view text);
// The quoted names with commas; if there are more than most_listed, the first ones and the number of the others.
inline constexpr std::size_t most_listed = 20;
std::string listed(std::span<const std::string_view> names);

// Returns a name that occurs twice, if there is one.
std::optional<std::string_view> repeated(std::vector<std::string_view> names);
// Ok if no key occurs twice.
status check_keys(const tensor_metadata& metadata);
// For metadata to be written: the same, and all of it must be UTF-8.
status check_texts(const tensor_metadata& metadata);

}  // namespace penstock::tensors
