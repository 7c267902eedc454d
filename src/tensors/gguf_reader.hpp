// Reads the bytes that stand before the tensors of a GGUF file. Every number is compared with the bytes that there are before anything is
// made of that size.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/gguf.hpp"

namespace penstock::tensors {

inline constexpr std::string_view gguf_magic = "GGUF";

// As the file tells it: nothing is compared with anything else yet.
struct gguf_tensor {
  std::string name;
  std::vector<std::uint64_t> dimensions;  // the one whose elements lie side by side first
  std::uint32_t type = 0;
  std::uint64_t offset = 0;  // from the beginning of the tensors
};

struct gguf_text {
  std::uint32_t version = 0;
  std::vector<std::pair<std::string, gguf_value>> metadata;
  std::vector<gguf_tensor> tensors;
  std::uint64_t end = 0;  // of the header in the file
};

// Errors: invalid_argument, telling the byte of the file. Where ran_out is set, it is only that the beginning of the file is too short.
result<gguf_text> read_gguf_text(std::string_view beginning, std::uint64_t file_bytes, bool& ran_out);

}  // namespace penstock::tensors
