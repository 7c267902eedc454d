// Files of tensors: which tensors are in one, where its bytes lie, and what such a file begins with. safetensors.
//
//   auto header = penstock::read_safetensors(*file);
//   for (const auto& tensor : header->tensors()) file->read(memory, tensor.bytes, tensor.offset);
//
// Only beginnings of files are read here. Many tensors are read fastest as one batch (engine::submit): ranges that follow each other in the
// file travel together.
// A file is checked as a whole before any of it is told: every byte of it is the header's or exactly one tensor's. What the format's own
// library refuses is refused here, and besides: names or fields that come twice, fields that the format does not know, tensors written as
// arrays, and a header that does not begin with '{'.
// Values; what is const may be used from any thread. Where memory runs out the result is errc::out_of_memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/status.hpp"

namespace penstock {

class file;

// Types of elements, in the order in which safetensors sorts them.
enum class tensor_type : std::uint8_t {
  boolean = 0,
  f4,  // two elements in a byte
  f6_e2m3,
  f6_e3m2,  // four elements in three bytes
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,  // of two f32
  f64,
  i64,
  u64,
};
inline constexpr int tensor_type_count = static_cast<int>(tensor_type::u64) + 1;

// "BF16": the name in safetensors files.
PENSTOCK_API std::string_view to_string(tensor_type type) noexcept;
// Errors: invalid_argument.
PENSTOCK_API result<tensor_type> parse_tensor_type(std::string_view name);
// Of one element.
PENSTOCK_API unsigned bits_of(tensor_type type) noexcept;
// Of a tensor of that type and shape; of no dimensions it is one element. Errors: invalid_argument (no whole number of bytes, or one that
// does not fit into 64 bits).
PENSTOCK_API result<std::uint64_t> tensor_bytes(tensor_type type, std::span<const std::uint64_t> shape);

struct tensor_facts {
  std::string name;  // UTF-8, any characters
  tensor_type type = tensor_type::u8;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  // of its first byte, from the beginning of the file
  std::uint64_t bytes = 0;
  friend bool operator==(const tensor_facts&, const tensor_facts&) = default;
};

// Text that a file carries beside its tensors, in the order of the file.
using tensor_metadata = std::vector<std::pair<std::string, std::string>>;

// What is in a file of tensors.
class PENSTOCK_API tensor_header {
 public:
  tensor_header() = default;  // of no tensors
  // Those of a file, sorted by offset; every name once.
  tensor_header(std::vector<tensor_facts> tensors, std::optional<tensor_metadata> metadata, std::uint64_t data_offset);

  // In the order of their bytes in the file. In a safetensors file these follow each other without a gap from data_offset() to its end.
  [[nodiscard]] const std::vector<tensor_facts>& tensors() const noexcept { return tensors_; }
  // None where the file does not mention any.
  [[nodiscard]] const std::optional<tensor_metadata>& metadata() const noexcept { return metadata_; }
  // Where the header ends and the bytes of the tensors begin.
  [[nodiscard]] std::uint64_t data_offset() const noexcept { return data_offset_; }
  // Null where there is none of that name. Quick: a search among sorted numbers.
  [[nodiscard]] const tensor_facts* find(std::string_view name) const noexcept;
  // The place in tensors() of some name that comes twice; nothing where all differ, as in files that were read.
  [[nodiscard]] std::optional<std::size_t> repeated_name() const noexcept;
  // The same without the tensors that are not called one of these names, which are sorted: other bytes lie between the rest then.
  [[nodiscard]] tensor_header only(std::span<const std::string_view> sorted_names) const;

 private:
  struct entry {
    std::size_t hash;  // of the name
    std::size_t place;
  };
  std::vector<tensor_facts> tensors_;
  std::optional<tensor_metadata> metadata_;
  std::uint64_t data_offset_ = 0;
  std::vector<entry> by_name_;  // sorted by hash, then name
};

// A safetensors file begins with the length of its header as eight bytes, the least first; then comes the header, at most so long.
inline constexpr std::uint64_t safetensors_length_bytes = 8;
inline constexpr std::uint64_t most_safetensors_header_bytes = 100'000'000;

// The length of the header, from the beginning of a file (its first eight bytes, or all that there is) and its size.
// Errors: invalid_argument (shorter than its header, or a header that is too long).
PENSTOCK_API result<std::uint64_t> safetensors_header_bytes(std::string_view beginning, std::uint64_t file_bytes);
// What a header says of a file of file_bytes. json: the header alone, with its padding. Errors: invalid_argument; the message names the
// tensor, or tells at which byte of the header it stops being one.
PENSTOCK_API result<tensor_header> parse_safetensors(std::string_view json, std::uint64_t file_bytes);
// Reads the header of a file: 64 KiB, and the rest where it is longer. Blocks. Errors: as parse_safetensors, and those of file::read; the
// message names the file.
PENSTOCK_API result<tensor_header> read_safetensors(const file& from);

// What a file of these tensors begins with, up to data_offset(), a multiple of eight. Sorts the tensors as safetensors does (by type, the
// longest elements first, then by name) and sets their offset and bytes; so the same tensors make the same file, whoever writes it, apart
// from the order of several pairs of metadata, which is kept here. Nothing is changed on failure. Errors: invalid_argument (a name that
// comes twice, is no UTF-8 or is "__metadata__"; a shape without a whole number of bytes; sizes beyond 2^63; a header that is too long).
PENSTOCK_API result<std::string> make_safetensors(std::vector<tensor_facts>& tensors,
                                                  const std::optional<tensor_metadata>& metadata = std::nullopt);

}  // namespace penstock
