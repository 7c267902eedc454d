// What several files of this room ask of names, and say of them. Free functions; safe from any thread.
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

// The key of the format's own member, which no tensor can be called.
inline constexpr std::string_view metadata_key = "__metadata__";

// "tensor "name"", fit for a terminal; of a name without end its beginning.
std::string tensor_called(std::string_view name);
// The same of other strings, without "tensor".
std::string quoted(std::string_view text);
// The names so, with commas; of many the first most_listed, and how many more there are.
inline constexpr std::size_t most_listed = 20;
std::string listed(std::span<const std::string_view> names);

// Some name that comes twice.
std::optional<std::string_view> repeated(std::vector<std::string_view> names);
// Ok where no key comes twice.
status check_keys(const tensor_metadata& metadata);
// The same, where all of it is UTF-8 too: of what is to be written.
status check_texts(const tensor_metadata& metadata);

}  // namespace penstock::tensors
