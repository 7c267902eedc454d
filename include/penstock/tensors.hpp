// Tensor files (safetensors): reads which tensors are in a file and where their bytes are, and creates headers.
//
//   auto header = penstock::read_safetensors(*file);
//   for (const auto& tensor : header->tensors()) file->read(memory, tensor.bytes, tensor.offset);
//
// This header reads only the start of each file. Many tensors are read fastest as one batch (engine::submit), which merges ranges that are
// adjacent in the file.
// A file is validated completely before any of it is returned: every byte belongs to the header or to exactly one tensor. Everything that
// the format's own library rejects is rejected, and also: repeated names or fields, unknown fields, tensors written as arrays, and a header
// that does not start with '{'.
// Plain values; any thread may use const ones. If memory runs out, the result is errc::out_of_memory.
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

// Element types, in the order in which safetensors sorts them.
enum class tensor_type : std::uint8_t {
  boolean = 0,
  f4,  // two elements per byte
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
  c64,  // two f32
  f64,
  i64,
  u64,
};
inline constexpr int tensor_type_count = static_cast<int>(tensor_type::u64) + 1;

// Returns the name in safetensors files, such as "BF16".
PENSTOCK_API std::string_view to_string(tensor_type type) noexcept;
// Errors: invalid_argument.
PENSTOCK_API result<tensor_type> parse_tensor_type(std::string_view name);
// Returns the number of bits per element.
PENSTOCK_API unsigned bits_of(tensor_type type) noexcept;
// Returns the size in bytes of a tensor of this type and shape; without dimensions it has one element. Errors: invalid_argument (not a
// whole number of bytes, or a number that does not fit into 64 bits).
PENSTOCK_API result<std::uint64_t> tensor_bytes(tensor_type type, std::span<const std::uint64_t> shape);

struct tensor_facts {
  std::string name;  // UTF-8; any characters
  tensor_type type = tensor_type::u8;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  // of its first byte, from the start of the file
  std::uint64_t bytes = 0;
  friend bool operator==(const tensor_facts&, const tensor_facts&) = default;
};

// Text in the header, in file order.
using tensor_metadata = std::vector<std::pair<std::string, std::string>>;

// The contents of a tensor file.
class PENSTOCK_API tensor_header {
 public:
  tensor_header() = default;  // no tensors
  // tensors: a file's tensors, sorted by offset, with unique names.
  tensor_header(std::vector<tensor_facts> tensors, std::optional<tensor_metadata> metadata, std::uint64_t data_offset);

  // In file order. A safetensors file has no gap between data_offset() and its end.
  [[nodiscard]] const std::vector<tensor_facts>& tensors() const noexcept { return tensors_; }
  // Returns nullopt if the file has no metadata.
  [[nodiscard]] const std::optional<tensor_metadata>& metadata() const noexcept { return metadata_; }
  // Returns the offset at which the header ends and the tensors' bytes start.
  [[nodiscard]] std::uint64_t data_offset() const noexcept { return data_offset_; }
  // Returns null if no tensor has this name. Fast: a binary search.
  [[nodiscard]] const tensor_facts* find(std::string_view name) const noexcept;
  // Returns the index in tensors() of a name that occurs twice; nullopt if all names differ, as they do in files that were read.
  [[nodiscard]] std::optional<std::size_t> repeated_name() const noexcept;
  // Returns a copy with only the tensors whose names are in this sorted list. It has gaps where other tensors were.
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

// A safetensors file starts with the length of its header as an eight-byte little-endian integer, followed by the header, which is at most
// most_safetensors_header_bytes long.
inline constexpr std::uint64_t safetensors_length_bytes = 8;
inline constexpr std::uint64_t most_safetensors_header_bytes = 100'000'000;

// Returns the length of the header, given the start of a file (its first eight bytes, or the whole file if it is shorter) and its size.
// Errors: invalid_argument (the file is shorter than its header, or the header is too long).
PENSTOCK_API result<std::uint64_t> safetensors_header_bytes(std::string_view beginning, std::uint64_t file_bytes);
// Parses the header of a file that is file_bytes long. json: only the header, with its padding. Errors: invalid_argument; the message
// includes the tensor or the byte offset in the header.
PENSTOCK_API result<tensor_header> parse_safetensors(std::string_view json, std::uint64_t file_bytes);
// Reads the header of a file: 64 KiB, and the rest if it is longer. Blocks. Errors: those of parse_safetensors and file::read; the message
// includes the file name.
PENSTOCK_API result<tensor_header> read_safetensors(const file& from);

// Creates the start of a file with these tensors, up to data_offset(), which is a multiple of eight. Sorts the tensors as safetensors does
// (by type, longest elements first, then by name) and sets their offset and bytes, so the same tensors always produce the same file; only
// the order of metadata pairs is kept as given. Changes nothing on failure. Errors: invalid_argument (a name that occurs twice, is not
// UTF-8 or is "__metadata__"; a shape without a whole number of bytes; sizes above 2^63; a header that is too long).
PENSTOCK_API result<std::string> make_safetensors(std::vector<tensor_facts>& tensors,
                                                  const std::optional<tensor_metadata>& metadata = std::nullopt);

}  // namespace penstock
