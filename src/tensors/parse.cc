#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/no_memory.hpp"
#include "penstock/engine.hpp"
#include "penstock/tensors.hpp"
#include "tensors/checks.hpp"
#include "tensors/file_kinds.hpp"
#include "tensors/header_reader.hpp"

namespace penstock {

namespace {

using tensors::tensor_called;

status wrong(std::string message) { return {errc::invalid_argument, std::move(message)}; }

// Sorts by offset. Tensors without bytes at the same offset keep the header's order.
void sort_by_place(std::vector<tensor_facts>& all) {
  const auto before = [](const tensor_facts& a, const tensor_facts& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  };
  if (!std::ranges::is_sorted(all, before)) std::ranges::stable_sort(all, before);
}

std::string shape_in_words(const tensor_facts& tensor) {
  constexpr std::size_t most = 20;
  const auto shown = std::span(tensor.shape).first(std::min(tensor.shape.size(), most));
  return fmt::format("[{}{}] of {}", fmt::join(shown, ", "), shown.size() < tensor.shape.size() ? ", ..." : "", to_string(tensor.type));
}

status check_size(const tensor_facts& tensor) {
  const auto bytes = tensor_bytes(tensor.type, tensor.shape);
  if (!bytes) {
    return bytes.error().code() == errc::invalid_argument
               ? bytes.error().with_context(fmt::format("{}, {}", tensor_called(tensor.name), shape_in_words(tensor)))
               : bytes.error();
  }
  if (*bytes == tensor.bytes) return {};
  return wrong(fmt::format("{}: {} takes {} bytes, but its offsets span {}", tensor_called(tensor.name), shape_in_words(tensor), *bytes,
                           tensor.bytes));
}

// Checks that each tensor starts where the previous one ends. Offsets are still relative to the end of the header.
status check_places(const std::vector<tensor_facts>& all) {
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const tensor_facts& tensor = all[i];
    if (tensor.offset > end) {
      return wrong(fmt::format("{} starts at {}: the {} bytes before it do not belong to any tensor", tensor_called(tensor.name),
                               tensor.offset, tensor.offset - end));
    }
    if (tensor.offset < end) {
      return wrong(fmt::format("{} starts at {}, but {} ends at {}: they overlap", tensor_called(tensor.name), tensor.offset,
                               tensor_called(all[i - 1].name), end));
    }
    if (status error = check_size(tensor); !error.ok()) return error;
    end += tensor.bytes;  // equals the end of its offsets, so it cannot overflow
  }
  return {};
}

// Checks that the tensors fill the rest of the file.
status check_end(const std::vector<tensor_facts>& all, std::uint64_t data_bytes) {
  const auto end_of = [](const tensor_facts& each) { return each.offset + each.bytes; };
  const std::uint64_t end = all.empty() ? 0 : end_of(all.back());
  if (end == data_bytes) return {};
  if (end < data_bytes) return wrong(fmt::format("the last {} bytes of the file do not belong to any tensor", data_bytes - end));
  const auto cut = std::ranges::find_if(all, [&](const tensor_facts& each) { return end_of(each) > data_bytes; });
  return wrong(fmt::format("{} ends at byte {} of the tensor data, but the file contains only {} bytes of it: the file is truncated",
                           tensor_called(cut->name), end_of(*cut), data_bytes));
}

result<tensor_header> parse(std::string_view json, std::uint64_t file_bytes) {
  const std::uint64_t data_offset = safetensors_length_bytes + json.size();
  if (json.size() > most_safetensors_header_bytes) return wrong(fmt::format("a header of {} bytes is too long", json.size()));
  if (data_offset > file_bytes)
    return wrong(fmt::format("a file of {} bytes cannot contain a header of {} bytes", file_bytes, json.size()));
  auto text = tensors::read_header_text(json);
  if (!text) return text.error();
  if (text->metadata) {
    if (status error = tensors::check_keys(*text->metadata); !error.ok()) return error;
  }
  sort_by_place(text->tensors);
  status error = check_places(text->tensors);
  if (error.ok()) error = check_end(text->tensors, file_bytes - data_offset);
  if (error.ok()) {
    for (tensor_facts& each : text->tensors) each.offset += data_offset;
  }
  tensor_header header(std::move(text->tensors), std::move(text->metadata), data_offset);
  // Report this first, because two tensors with the same name probably overlap too.
  if (const auto twice = header.repeated_name())
    return wrong(fmt::format("{} appears twice", tensor_called(header.tensors()[*twice].name)));
  if (!error.ok()) return error;
  return header;
}

result<tensor_header> read_header(const file& from) {
  constexpr std::uint64_t first_bytes = std::uint64_t{64} << 10;  // large enough for most headers
  const auto size = from.size();
  if (!size) return size.error();
  std::string beginning;
  if (status error = tensors::read_beginning(from, beginning, std::min(*size, first_bytes)); !error.ok()) return error;
  const auto header_bytes = safetensors_header_bytes(beginning, *size);
  if (!header_bytes) return tensors::known_stand_in(from, "safetensors").value_or(header_bytes.error().with_context(from.path()));
  const std::uint64_t end = safetensors_length_bytes + *header_bytes;
  if (beginning.size() < end) {
    if (status error = tensors::read_beginning(from, beginning, end); !error.ok()) return error;
  }
  if (beginning.size() < end) {
    return wrong(fmt::format("{}: the file was truncated while it was being read: it is now {} bytes long, but its header ends at {}",
                             from.path(), beginning.size(), end));
  }
  auto header = parse_safetensors(std::string_view(beginning).substr(safetensors_length_bytes, *header_bytes), *size);
  if (!header) return tensors::known_stand_in(from, "safetensors").value_or(header.error().with_context(from.path()));
  return header;
}

}  // namespace

result<std::uint64_t> safetensors_header_bytes(std::string_view beginning, std::uint64_t file_bytes) {
  return or_no_memory([&]() -> result<std::uint64_t> {
    if (beginning.size() < safetensors_length_bytes) {
      return wrong(fmt::format("not a safetensors file: it is {} bytes long, but the header length alone takes {}", beginning.size(),
                               safetensors_length_bytes));
    }
    std::uint64_t length = 0;
    for (std::size_t i = safetensors_length_bytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(beginning[i]);
    if (length > most_safetensors_header_bytes) {
      return wrong(fmt::format("not a safetensors file: its first 8 bytes specify a header of {} bytes, but the limit is {}", length,
                               most_safetensors_header_bytes));
    }
    if (length > file_bytes || file_bytes - length < safetensors_length_bytes) {
      return wrong(fmt::format("a header of {} bytes does not fit into a file of {} bytes: the file is truncated", length, file_bytes));
    }
    return length;
  });
}

result<tensor_header> parse_safetensors(std::string_view json, std::uint64_t file_bytes) {
  return or_no_memory([&] { return parse(json, file_bytes); });
}

result<tensor_header> read_safetensors(const file& from) {
  return or_no_memory([&] { return read_header(from); });
}

}  // namespace penstock
