// Reads the text of a safetensors header. The format uses a small part of JSON: one object of tensors, each an object with three fields,
// and one object of strings. Deeper nesting is rejected, so stack use is bounded even for hostile input. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"
#include "penstock/tensors.hpp"

namespace penstock::tensors {

// The contents of the text, not yet validated; offsets are relative to the end of the header.
struct header_text {
  std::vector<tensor_facts> tensors;
  std::optional<tensor_metadata> metadata;
};

// Errors: invalid_argument; the message includes the byte offset in the text and, if inside a tensor's entry, the tensor's name.
result<header_text> read_header_text(std::string_view text);

}  // namespace penstock::tensors
