// Reads the text of a safetensors header. The format uses a small part of JSON: one object of tensors, each an object with three fields,
// and one object of strings. Deeper nesting is refused, so the stack is bounded for hostile input too. One thread.
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

// The contents of the text, not yet validated; offsets count from the end of the header.
struct header_text {
  std::vector<tensor_facts> tensors;
  std::optional<tensor_metadata> metadata;
};

// Errors: invalid_argument; the message names the byte of the text and, within a tensor, the tensor.
result<header_text> read_header_text(std::string_view text);

}  // namespace penstock::tensors
