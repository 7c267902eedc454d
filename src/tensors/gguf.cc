#include "penstock/gguf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "base/checked.hpp"
#include "base/no_memory.hpp"
#include "penstock/engine.hpp"
#include "tensors/checks.hpp"
#include "tensors/file_kinds.hpp"
#include "tensors/gguf_reader.hpp"

namespace penstock {

namespace {

using tensors::tensor_called;

constexpr std::uint32_t default_alignment = 32;
constexpr std::string_view alignment_key = "general.alignment";

status no_gguf(std::string message) { return {errc::invalid_argument, std::move(message)}; }

// --- metadata

status check_gguf_keys(const gguf_header& header) {
  std::vector<std::string_view> keys;
  keys.reserve(header.metadata.size());
  for (const auto& [key, value] : header.metadata) keys.emplace_back(key);
  const auto twice = tensors::repeated(std::move(keys));
  return twice ? no_gguf(fmt::format("the key {} appears twice in the metadata", tensors::quoted(*twice))) : status();
}

result<std::uint32_t> gguf_alignment(const gguf_header& header) {
  const gguf_value* const told = header.find(alignment_key);
  if (told == nullptr) return default_alignment;
  const auto* const number = std::get_if<std::uint32_t>(told);
  if (number == nullptr) {
    return no_gguf(fmt::format("{} is of type {}, not u32", alignment_key, to_string(static_cast<gguf_value_type>(told->index()))));
  }
  if (!std::has_single_bit(*number)) return no_gguf(fmt::format("{} is {}, which is not a power of two", alignment_key, *number));
  return *number;
}

// --- tensors

struct placed_elements {
  tensor_facts facts;
  gguf_elements elements;
  std::uint32_t unknown_type = 0;  // set if elements.type is null
};

// Returns the shape in bytes: for quantized types, the bytes of a row replace its elements.
result<std::vector<std::uint64_t>> shape_of_blocks(const gguf_elements& of) {
  std::vector<std::uint64_t> shape = of.shape;
  if (of.type->plain) return shape;
  const std::uint64_t row = shape.empty() ? 1 : shape.back();
  if (row % of.type->block_elements != 0) {
    return no_gguf(fmt::format("its rows of {} elements are not a multiple of the {}-element blocks of type {}", row,
                               of.type->block_elements, of.type->name));
  }
  if (__builtin_mul_overflow(row / of.type->block_elements, std::uint64_t{of.type->block_bytes}, &shape.back()))
    return no_gguf("the size of its rows does not fit into 64 bits");
  return shape;
}

// The offset in the result is still relative to the start of the tensor data. A tensor of unknown type has an offset but no bytes.
result<placed_elements> elements_of(tensors::gguf_tensor&& told) {
  placed_elements made;
  made.elements.type = find_ggml_type(told.type);
  made.elements.shape.assign(told.dimensions.rbegin(), told.dimensions.rend());
  made.facts.offset = told.offset;
  made.facts.name = std::move(told.name);
  made.unknown_type = told.type;
  if (made.elements.type == nullptr) return made;
  auto shape = shape_of_blocks(made.elements);
  if (!shape) return shape.error();
  made.facts.shape = *std::move(shape);
  made.facts.type = made.elements.type->plain.value_or(tensor_type::u8);
  const auto bytes = tensor_bytes(made.facts.type, made.facts.shape);
  if (!bytes) return bytes.error();
  made.facts.bytes = *bytes;
  return made;
}

status check_gguf_place(const tensor_facts& tensor, std::uint32_t alignment, std::uint64_t data_offset, std::uint64_t file_bytes) {
  if (tensor.offset % alignment != 0)
    return no_gguf(fmt::format("its offset {} in the tensor data is not a multiple of the alignment, {}", tensor.offset, alignment));
  const auto end = range_end(tensor.offset, tensor.bytes);
  const std::uint64_t there = file_bytes - std::min(file_bytes, data_offset);
  if (end && *end <= there) return {};
  return no_gguf(fmt::format("its {} bytes at offset {} extend past the {} bytes of tensor data in the file: the file is truncated",
                             tensor.bytes, tensor.offset, there));
}

// all: sorted. Tensors without bytes may share an offset.
status check_gguf_overlap(const std::vector<placed_elements>& all) {
  const tensor_facts* before = nullptr;
  for (const placed_elements& each : all) {
    const tensor_facts& facts = each.facts;
    if (facts.bytes == 0 && each.elements.type != nullptr) continue;
    if (before != nullptr && before->offset + before->bytes > facts.offset) {
      return no_gguf(fmt::format("{} starts at {}, but {} ends at {}: they overlap", tensor_called(facts.name), facts.offset,
                                 tensor_called(before->name), before->offset + before->bytes));
    }
    if (facts.bytes > 0) before = &facts;
  }
  return {};
}

status check_gguf_names(const std::vector<placed_elements>& all) {
  std::vector<std::string_view> names;
  names.reserve(all.size());
  for (const placed_elements& each : all) names.emplace_back(each.facts.name);
  const auto twice = tensors::repeated(std::move(names));
  return twice ? no_gguf(fmt::format("{} appears twice", tensor_called(*twice))) : status();
}

result<std::vector<placed_elements>> place_gguf_tensors(std::vector<tensors::gguf_tensor>&& told, std::uint32_t alignment,
                                                        std::uint64_t data_offset, std::uint64_t file_bytes) {
  std::vector<placed_elements> all;
  all.reserve(told.size());
  for (tensors::gguf_tensor& each : told) {
    const std::string name = each.name;
    auto made = elements_of(std::move(each));
    if (!made) return made.error().with_context(tensor_called(name));
    if (status error = check_gguf_place(made->facts, alignment, data_offset, file_bytes); !error.ok())
      return error.with_context(tensor_called(name));
    all.push_back(*std::move(made));
  }
  // At equal offsets, a tensor of unknown type is sorted last, because its size cannot be zero.
  const auto last_bytes = [](const placed_elements& each) { return each.elements.type != nullptr ? each.facts.bytes : ~std::uint64_t{0}; };
  std::ranges::stable_sort(all, {}, [&](const placed_elements& each) { return std::pair(each.facts.offset, last_bytes(each)); });
  if (status error = check_gguf_overlap(all); !error.ok()) return error;
  return all;
}

// --- the whole header

result<gguf_header> checked_gguf(tensors::gguf_text&& text, std::uint64_t file_bytes) {
  gguf_header header;
  header.version = text.version;
  header.metadata = std::move(text.metadata);
  if (status error = check_gguf_keys(header); !error.ok()) return error;
  const auto alignment = gguf_alignment(header);
  if (!alignment) return alignment.error();
  header.alignment = *alignment;
  const std::uint64_t data_offset = (text.end + *alignment - 1) & ~(std::uint64_t{*alignment} - 1);
  auto placed = place_gguf_tensors(std::move(text.tensors), *alignment, data_offset, file_bytes);
  if (!placed) return placed.error();
  if (status error = check_gguf_names(*placed); !error.ok()) return error;
  std::vector<tensor_facts> facts;
  facts.reserve(placed->size());
  header.elements.reserve(placed->size());
  for (placed_elements& each : *placed) {
    each.facts.offset += data_offset;  // cannot overflow: the tensor starts within the file
    if (each.elements.type == nullptr) {
      header.unknown.push_back({std::move(each.facts.name), each.unknown_type, std::move(each.elements.shape), each.facts.offset});
      continue;
    }
    facts.push_back(std::move(each.facts));
    header.elements.push_back(std::move(each.elements));
  }
  header.tensors = tensor_header(std::move(facts), std::nullopt, data_offset);
  return header;
}

result<gguf_header> parse_gguf_header(std::string_view beginning, std::uint64_t file_bytes, bool& ran_out) {
  auto text = tensors::read_gguf_text(beginning, file_bytes, ran_out);
  if (!text) return text.error();
  return checked_gguf(*std::move(text), file_bytes);
}

// A model's vocabulary takes several MiB, and its end is only known after parsing it. So the header is parsed from the start again each
// time more bytes have been read.
result<gguf_header> read_gguf_header(const file& from) {
  constexpr std::uint64_t first_bytes = std::uint64_t{256} << 10, growth = 4;
  const auto size = from.size();
  if (!size) return size.error();
  std::string text;
  for (std::uint64_t wanted = std::min(*size, first_bytes);; wanted = std::min({*size, wanted * growth, most_gguf_header_bytes})) {
    if (status error = tensors::read_beginning(from, text, wanted); !error.ok()) return error;
    bool ran_out = false;
    auto header = parse_gguf_header(text, *size, ran_out);
    if (header) return header;
    if (text.size() < wanted)
      return no_gguf(fmt::format("{}: the file was truncated while it was being read (now {} bytes)", from.path(), text.size()));
    if (!ran_out) return tensors::known_stand_in(from, "gguf").value_or(header.error().with_context(from.path()));
  }
}

}  // namespace

std::string_view to_string(gguf_value_type type) noexcept {
  constexpr std::array<std::string_view, gguf_value_type_count> names = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                                         "bool", "string", "array", "u64", "i64", "f64"};
  return names.at(static_cast<std::size_t>(type));
}

std::size_t gguf_array::size() const noexcept {
  return std::visit([](const auto& each) { return each.size(); }, items);
}

const gguf_value* gguf_header::find(std::string_view key) const noexcept {
  const auto found = std::ranges::find_if(metadata, [&](const auto& each) { return each.first == key; });
  return found == metadata.end() ? nullptr : &found->second;
}

bool is_gguf(const file& from) {
  std::array<char, 4> first{};
  const io_result done = from.read(first.data(), first.size(), 0);
  return done.ok() && std::string_view(first.data(), done.bytes_done) == tensors::gguf_magic;
}

result<gguf_header> parse_gguf(std::string_view beginning, std::uint64_t file_bytes) {
  return or_no_memory([&] {
    bool ran_out = false;
    return parse_gguf_header(beginning, file_bytes, ran_out);
  });
}

result<gguf_header> read_gguf(const file& from) {
  return or_no_memory([&] { return read_gguf_header(from); });
}

}  // namespace penstock
