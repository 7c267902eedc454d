// Feeds any bytes to the safetensors parser, as the beginning of a file: of exactly these bytes, and of one as long as its header says. An
// accepted file is consistent: its tensors fill the file, and writing it again gives the same header. Built with clang's -fsanitize=fuzzer,
// or with replay_main.cc for a replay.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/tensors.hpp"

using namespace penstock;

namespace {

void require(bool truth) {
  if (!truth) std::abort();
}

std::uint64_t end_of(const tensor_header& header) {
  return header.tensors().empty() ? header.data_offset() : header.tensors().back().offset + header.tensors().back().bytes;
}

void check(const tensor_header& header, std::uint64_t file_bytes) {
  std::uint64_t end = header.data_offset();
  for (const tensor_facts& each : header.tensors()) {
    require(each.offset == end);
    const auto bytes = tensor_bytes(each.type, each.shape);
    require(bytes.ok() && *bytes == each.bytes);
    end += each.bytes;
    require(header.find(each.name) == &each);
  }
  require(end == file_bytes && end_of(header) == file_bytes && !header.repeated_name());
}

void write_again(const tensor_header& header) {
  auto tensors = header.tensors();
  const auto made = make_safetensors(tensors, header.metadata());
  if (!made.ok()) return;  // escaped otherwise, it can be too long
  const std::uint64_t file_bytes = tensors.empty() ? made->size() : tensors.back().offset + tensors.back().bytes;
  const auto again = parse_safetensors(std::string_view(*made).substr(safetensors_length_bytes), file_bytes);
  require(again.ok() && again->metadata() == header.metadata() && again->tensors() == tensors);
  require(again->tensors().size() == header.tensors().size());
}

void read(std::string_view json, std::uint64_t file_bytes) {
  const auto header = parse_safetensors(json, file_bytes);
  if (!header.ok()) {
    require(header.error().code() == errc::invalid_argument && !header.error().message().empty());
    for (const char c : header.error().message()) require(static_cast<unsigned char>(c) >= ' ');
    return;
  }
  check(*header, file_bytes);
  write_again(*header);
}

// The size that the last pair of offsets speaks of.
std::uint64_t last_number(std::string_view json) {
  std::uint64_t number = 0, last = 0;
  bool inside = false;
  for (const char c : json) {
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit) number = (inside ? number * 10 : 0) + static_cast<std::uint64_t>(c - '0');
    if (!is_digit && inside) last = number;
    inside = is_digit;
  }
  return last;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string file(reinterpret_cast<const char*>(data), size);
  const auto length = safetensors_header_bytes(file, size);
  if (length.ok()) read(std::string_view(file).substr(safetensors_length_bytes, *length), size);
  // The same bytes as a header alone, which an input reaches without a right length.
  const std::uint64_t beginning = safetensors_length_bytes + size, last = last_number(file);
  read(file, beginning);
  if (last <= ~beginning) read(file, beginning + last);
  return 0;
}
