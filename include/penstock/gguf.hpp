// GGUF files: models as llama.cpp has them, with their settings and vocabulary, and tensors whose elements may be quantised in blocks.
//
//   auto header = penstock::read_gguf(*file);
//   for (const auto& tensor : header->tensors.tensors()) file->read(memory, tensor.bytes, tensor.offset);
//
// Only beginnings of files are read here. model::open() and load_model() bring the tensors into the memory of devices.
// Versions 2 and 3 of the format, little-endian. A file is checked as a whole before any of it is told: tensors lie inside of the file,
// begin at multiples of its alignment, and share no byte; no name and no key comes twice. Other bytes may lie between tensors. Values; what
// is const may be used from any thread. Where memory runs out the result is errc::out_of_memory.
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

// A type of elements in GGUF files. Elements are stored in blocks: of one element where the type is not quantised.
struct ggml_type {
  std::uint32_t number = 0;  // in files
  std::string_view name;     // "Q4_K"
  std::uint32_t block_elements = 1;
  std::uint32_t block_bytes = 0;
  std::optional<tensor_type> plain;  // what is not quantised is one of these, too
};

// Every type that is known, by number.
PENSTOCK_API std::span<const ggml_type> ggml_types() noexcept;
// Null where the number is no type's that is known. What it points to lives as long as the program.
PENSTOCK_API const ggml_type* find_ggml_type(std::uint32_t number) noexcept;

// Types of metadata, by their numbers in files, which are also the alternatives of gguf_value and gguf_array::items.
enum class gguf_value_type : std::uint32_t { u8 = 0, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
inline constexpr int gguf_value_type_count = static_cast<int>(gguf_value_type::f64) + 1;
// "u8", "bool", "string".
PENSTOCK_API std::string_view to_string(gguf_value_type type) noexcept;

// All items of an array are of one type. Those of an array of arrays may differ.
struct gguf_array {
  std::variant<std::vector<std::uint8_t>, std::vector<std::int8_t>, std::vector<std::uint16_t>, std::vector<std::int16_t>,
               std::vector<std::uint32_t>, std::vector<std::int32_t>, std::vector<float>, std::vector<bool>, std::vector<std::string>,
               std::vector<gguf_array>, std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>
      items;
  [[nodiscard]] gguf_value_type type() const noexcept { return static_cast<gguf_value_type>(items.index()); }  // of the items
  [[nodiscard]] PENSTOCK_API std::size_t size() const noexcept;
};

// Strings are any bytes; those of most files are UTF-8.
using gguf_value = std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, float, bool,
                                std::string, gguf_array, std::uint64_t, std::int64_t, double>;

// The elements of a tensor.
struct gguf_elements {
  const ggml_type* type = nullptr;
  // Of elements. As everywhere in Penstock the last dimension is the one whose elements lie side by side; files list it first.
  std::vector<std::uint64_t> shape;
};

// A tensor of a type that find_ggml_type() does not know: where it begins is known, and how many bytes it has is not.
struct gguf_unknown_tensor {
  std::string name;
  std::uint32_t type = 0;            // in the file
  std::vector<std::uint64_t> shape;  // of elements, as in gguf_elements
  std::uint64_t offset = 0;          // in bytes, from the beginning of the file
};

// What is in a GGUF file.
struct gguf_header {
  std::uint32_t version = 0;
  std::uint32_t alignment = 0;                               // bytes: general.alignment, or 32
  std::vector<std::pair<std::string, gguf_value>> metadata;  // in the order of the file; keys are UTF-8
  // As they are loaded: types that are not quantised as they are, and of quantised ones the blocks as bytes (U8), whose last dimension is
  // the bytes of a row. Sorted by offset. It has no metadata of its own.
  tensor_header tensors;
  std::vector<gguf_elements> elements;       // of each of tensors.tensors()
  std::vector<gguf_unknown_tensor> unknown;  // sorted by offset; these are not among tensors, and cannot be loaded

  // All that the file has, known or not; tensors may have been moved out.
  [[nodiscard]] std::size_t tensor_count() const noexcept { return elements.size() + unknown.size(); }
  // Null where there is no such key.
  [[nodiscard]] PENSTOCK_API const gguf_value* find(std::string_view key) const noexcept;
};

// What stands before the tensors is not longer, a key is not longer, arrays are not nested deeper, and tensors have not more dimensions.
inline constexpr std::uint64_t most_gguf_header_bytes = std::uint64_t{128} << 20;
inline constexpr std::uint64_t most_gguf_key_bytes = 65'535;
inline constexpr int most_gguf_array_depth = 8;
inline constexpr std::uint32_t most_gguf_dimensions = 8;

// Whether a file begins as GGUF files do. Blocks. False where it cannot be read.
PENSTOCK_API bool is_gguf(const file& from);
// What a header says of a file of file_bytes. beginning: of the file, with the whole header. Errors: invalid_argument; the message names
// the key or the tensor, or tells at which byte of the file it stops being one.
PENSTOCK_API result<gguf_header> parse_gguf(std::string_view beginning, std::uint64_t file_bytes);
// Reads the header of a file: 256 KiB, and more in growing pieces where it is longer. Blocks. Errors: as parse_gguf, and those of
// file::read; the message names the file.
PENSTOCK_API result<gguf_header> read_gguf(const file& from);

// --- models in several files

// The files of a model that path is one of: "folder/name-00002-of-00003.gguf" is the second of three; any other path stands for itself. In
// their order. Files at URLs have the query of path. Asks the file system. Errors: not_found, naming up to 20 that are not there.
PENSTOCK_API result<std::vector<std::string>> gguf_files_of(const std::string& path);
// split.no and split.count of the metadata; 0 where they are missing. A file whose count is 0 is a whole model.
PENSTOCK_API std::uint64_t gguf_split_number(const gguf_header& header) noexcept;
PENSTOCK_API std::uint64_t gguf_split_count(const gguf_header& header) noexcept;
// Ok if the metadata of the files (split.no, split.count, split.tensors.count), as far as they have it, says that they are all of one
// model, in this order. Errors: invalid_argument, naming the first file that says otherwise, by its name among paths.
PENSTOCK_API status check_gguf_files(std::span<const std::string> paths, std::span<const gguf_header* const> headers);

}  // namespace penstock
