// GGUF files: llama.cpp's models, with settings, vocabulary and tensors. Tensor elements may be quantised in blocks.
//
//   auto header = penstock::read_gguf(*file);
//   for (const auto& tensor : header->tensors.tensors()) file->read(memory, tensor.bytes, tensor.offset);
//
// This header reads only the start of each file. model::open() and load_model() load the tensors into device memory. Supports versions 2
// and 3 of the format, little-endian. A file is validated completely before any of it is returned: tensors are inside the file, start at
// multiples of its alignment and do not overlap; no name or key occurs twice. There may be other bytes between tensors. Plain values; any
// thread may use const ones. If memory runs out, the result is errc::out_of_memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "penstock/status.hpp"
#include "penstock/tensors.hpp"

namespace penstock {

class file;

// An element type of GGUF files. Elements are stored in blocks; a block of a type that is not quantised has one element.
struct ggml_type {
  std::uint32_t number = 0;  // the type's number in files
  std::string_view name;     // "Q4_K"
  std::uint32_t block_elements = 1;
  std::uint32_t block_bytes = 0;
  std::optional<tensor_type> plain;  // the same type in tensors.hpp, unless it is quantised
};

// Returns all known types, by number.
PENSTOCK_API std::span<const ggml_type> ggml_types() noexcept;
// Returns null for an unknown number. The result points to static data.
PENSTOCK_API const ggml_type* find_ggml_type(std::uint32_t number) noexcept;

// Metadata types, with their numbers in files. The numbers are also the indexes of the alternatives in gguf_value and gguf_array::items.
enum class gguf_value_type : std::uint32_t { u8 = 0, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
inline constexpr int gguf_value_type_count = static_cast<int>(gguf_value_type::f64) + 1;
// Returns a name such as "u8", "bool" or "string".
PENSTOCK_API std::string_view to_string(gguf_value_type type) noexcept;

// All items of an array have one type; the items of an array of arrays may differ.
struct gguf_array {
  std::variant<std::vector<std::uint8_t>, std::vector<std::int8_t>, std::vector<std::uint16_t>, std::vector<std::int16_t>,
               std::vector<std::uint32_t>, std::vector<std::int32_t>, std::vector<float>, std::vector<bool>, std::vector<std::string>,
               std::vector<gguf_array>, std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>
      items;
  [[nodiscard]] gguf_value_type type() const noexcept { return static_cast<gguf_value_type>(items.index()); }  // the items' type
  [[nodiscard]] PENSTOCK_API std::size_t size() const noexcept;
};

// Strings are arbitrary bytes; in most files they are UTF-8.
using gguf_value = std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, float, bool,
                                std::string, gguf_array, std::uint64_t, std::int64_t, double>;

// The elements of a tensor.
struct gguf_elements {
  const ggml_type* type = nullptr;
  // In elements. As everywhere in Penstock, the last dimension is contiguous; files list it first.
  std::vector<std::uint64_t> shape;
};

// A tensor whose type find_ggml_type() does not know. Its offset is known, but not its size.
struct gguf_unknown_tensor {
  std::string name;
  std::uint32_t type = 0;            // its number in the file
  std::vector<std::uint64_t> shape;  // of elements, as in gguf_elements
  std::uint64_t offset = 0;          // in bytes, from the start of the file
};

// The contents of a GGUF file.
struct gguf_header {
  std::uint32_t version = 0;
  std::uint32_t alignment = 0;                               // bytes: general.alignment, or 32
  std::vector<std::pair<std::string, gguf_value>> metadata;  // in file order; keys are UTF-8
  // The tensors in the form in which they are loaded: plain types unchanged; quantised types as the bytes (U8) of their blocks, with the
  // bytes of a row as the last dimension. Sorted by offset. This header's own metadata is empty.
  tensor_header tensors;
  std::vector<gguf_elements> elements;       // one for each of tensors.tensors()
  std::vector<gguf_unknown_tensor> unknown;  // sorted by offset; not in tensors, cannot be loaded

  // Returns the number of tensors in the file, known or not, even after tensors has been moved from.
  [[nodiscard]] std::size_t tensor_count() const noexcept { return elements.size() + unknown.size(); }
  // Returns null if the key does not exist.
  [[nodiscard]] PENSTOCK_API const gguf_value* find(std::string_view key) const noexcept;
};

// Limits: bytes before the tensors, bytes in a key, array nesting depth, dimensions of a tensor.
inline constexpr std::uint64_t most_gguf_header_bytes = std::uint64_t{128} << 20;
inline constexpr std::uint64_t most_gguf_key_bytes = 65'535;
inline constexpr int most_gguf_array_depth = 8;
inline constexpr std::uint32_t most_gguf_dimensions = 8;

// Returns true if a file starts like a GGUF file. Blocks. Returns false if it cannot be read.
PENSTOCK_API bool is_gguf(const file& from);
// Parses the header of a file that is file_bytes long. beginning: the start of the file, including the whole header. Errors:
// invalid_argument; the message includes the key, the tensor or the byte offset in the file.
PENSTOCK_API result<gguf_header> parse_gguf(std::string_view beginning, std::uint64_t file_bytes);
// Reads the header of a file: 256 KiB at first, then increasingly large chunks if the header is longer. Blocks. Errors: those of
// parse_gguf and file::read; the message includes the file name.
PENSTOCK_API result<gguf_header> read_gguf(const file& from);

// --- models split into several files

// Returns the files of the model that path belongs to, in order: "folder/name-00002-of-00003.gguf" is the second of three; any other path
// is the only file. URLs of further files get the query of path. Queries the file system. Errors: not_found; the message lists up to 20
// missing files.
PENSTOCK_API result<std::vector<std::string>> gguf_files_of(const std::string& path);
// split.no and split.count from the metadata; 0 if they are missing. A file with a count of 0 is a complete model.
PENSTOCK_API std::uint64_t gguf_split_number(const gguf_header& header) noexcept;
PENSTOCK_API std::uint64_t gguf_split_count(const gguf_header& header) noexcept;
// Returns ok if, according to their metadata (split.no, split.count, split.tensors.count, where present), the files together are one
// complete model, in this order. Errors: invalid_argument; the message includes the first file that does not match, by its name in paths.
PENSTOCK_API status check_gguf_files(std::span<const std::string> paths, std::span<const gguf_header* const> headers);

}  // namespace penstock
