// Checks names and metadata, and formats them for messages. Free functions; thread-safe.
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

// The key that the format reserves for metadata; no tensor can have this name.
inline constexpr std::string_view metadata_key = "__metadata__";

// Returns "tensor "NAME"", safe to print on a terminal. A very long name is shortened.
std::string tensor_called(std::string_view name);
// Like tensor_called(), but for other strings and without "tensor".
std::string quoted(std::string_view text);
// Returns the quoted names separated by commas. If there are more than most_listed, returns the first ones and the number of the rest.
inline constexpr std::size_t most_listed = 20;
std::string listed(std::span<const std::string_view> names);

// Returns a name that occurs twice, if any.
std::optional<std::string_view> repeated(std::vector<std::string_view> names);
// Returns ok if no key occurs twice.
status check_keys(const tensor_metadata& metadata);
// The same for metadata to be written, which must also be UTF-8.
status check_texts(const tensor_metadata& metadata);

}  // namespace penstock::tensors
