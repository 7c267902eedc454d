// Feeds any bytes to the GGUF parser: as a whole file, and as the beginning of a longer one. An accepted file is consistent: its tensors
// lie in the file, do not overlap, and have the sizes that their types and shapes demand. Built with clang's -fsanitize=fuzzer, or with
// replay_main.cc for a replay.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "penstock/gguf.hpp"

using namespace penstock;

namespace {

void require(bool truth) {
  if (!truth) std::abort();
}

void check_tensor(const tensor_facts& tensor, const gguf_elements& elements) {
  const auto bytes = tensor_bytes(tensor.type, tensor.shape);
  require(bytes.ok() && *bytes == tensor.bytes && elements.type != nullptr);
  require(elements.shape.size() == tensor.shape.size() && elements.shape.size() <= most_gguf_dimensions);
  require(elements.type->plain.value_or(tensor_type::u8) == tensor.type);
}

void check(const gguf_header& header, std::uint64_t file_bytes) {
  const auto& tensors = header.tensors.tensors();
  require(tensors.size() == header.elements.size() && !header.tensors.repeated_name());
  std::uint64_t end = header.tensors.data_offset();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_tensor(tensors[i], header.elements[i]);
    require(tensors[i].bytes == 0 || (tensors[i].offset >= end && tensors[i].offset + tensors[i].bytes <= file_bytes));
    require(tensors[i].offset % header.alignment == 0 && header.tensors.find(tensors[i].name) == &tensors[i]);
    if (tensors[i].bytes > 0) end = tensors[i].offset + tensors[i].bytes;
  }
  for (const auto& [key, value] : header.metadata) require(header.find(key) == &value);
}

void read(std::string_view beginning, std::uint64_t file_bytes) {
  const auto header = parse_gguf(beginning, file_bytes);
  if (header.ok()) return check(*header, file_bytes);
  require(header.error().code() == errc::invalid_argument && !header.error().message().empty());
  for (const char c : header.error().message()) require(static_cast<unsigned char>(c) >= ' ');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  read(file, size);
  read(file, size + 1000);
  read(file, std::uint64_t{1} << 40);
  return 0;
}
