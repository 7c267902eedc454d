// Reads the header of a GGUF file: the bytes before its tensors. Checks every count and length against the available bytes before it
// allocates memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/gguf.hpp"

namespace penstock::tensors {

inline constexpr std::string_view gguf_magic = "GGUF";

// A tensor as described by the file, not yet validated.
struct gguf_tensor {
  std::string name;
  std::vector<std::uint64_t> dimensions;  // fastest-varying dimension first
  std::uint32_t type = 0;
  std::uint64_t offset = 0;  // from the start of the tensor data
};

struct gguf_text {
  std::uint32_t version = 0;
  std::vector<std::pair<std::string, gguf_value>> metadata;
  std::vector<gguf_tensor> tensors;
  std::uint64_t end = 0;  // end of the header in the file
};

// Errors: invalid_argument (the message includes the byte offset in the file). Sets ran_out if the only problem is that more bytes of the
// file are needed.
result<gguf_text> read_gguf_text(std::string_view beginning, std::uint64_t file_bytes, bool& ran_out);

}  // namespace penstock::tensors
