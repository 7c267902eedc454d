// Reads the text of a safetensors header: JSON, of which the format uses little. One object of tensors, each an object of three fields, and
// one of strings: it cannot be nested deeper, so reading takes no stack however a hostile text is nested. One thread.
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

// What a text says, not yet compared with anything: offsets count from the end of the header.
struct header_text {
  std::vector<tensor_facts> tensors;
  std::optional<tensor_metadata> metadata;
};

// Errors: invalid_argument; the message tells the byte of the text and, inside of a tensor, which.
result<header_text> read_header_text(std::string_view text);

}  // namespace penstock::tensors
