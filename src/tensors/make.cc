#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/no_memory.hpp"
#include "base/printable.hpp"
#include "penstock/tensors.hpp"
#include "tensors/checks.hpp"

namespace penstock {

namespace {

using tensors::tensor_called;

status unfit(std::string message) { return {errc::invalid_argument, std::move(message)}; }

// Writes a JSON string with the same escapes as the format's own library.
void put_string(std::string_view text, std::string& to) {
  constexpr std::string_view meanings = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
  const auto stands_for_itself = [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\'; };
  to.push_back('"');
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::size_t begin = at;
    while (at < text.size() && stands_for_itself(text[at])) ++at;
    to.append(text.substr(begin, at - begin));
    if (at == text.size()) break;
    if (const auto found = meanings.find(text[at]); found != std::string_view::npos) {
      to.push_back('\\');
      to.push_back(letters[found]);
    } else {
      to.append(fmt::format("\\u{:04x}", static_cast<unsigned>(text[at])));
    }
  }
  to.push_back('"');
}

void put_metadata(const tensor_metadata& metadata, std::string& to) {
  to += "\"__metadata__\":{";
  for (const auto& [key, value] : metadata) {
    if (&key != &metadata.front().first) to.push_back(',');
    put_string(key, to);
    to.push_back(':');
    put_string(value, to);
  }
  to.push_back('}');
}

void put_number(std::uint64_t number, std::string& to) {
  const fmt::format_int digits(number);
  to.append(digits.data(), digits.size());
}

void put_tensor(const tensor_facts& tensor, std::string& to) {
  put_string(tensor.name, to);
  to.append(":{\"dtype\":\"").append(to_string(tensor.type)).append("\",\"shape\":[");
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i > 0) to.push_back(',');
    put_number(tensor.shape[i], to);
  }
  to.append("],\"data_offsets\":[");
  put_number(tensor.offset, to);
  to.push_back(',');
  put_number(tensor.offset + tensor.bytes, to);
  to.append("]}");
}

// Sets the sizes and the offsets; offsets are relative to the end of the header.
status place(std::vector<tensor_facts>& all) {
  std::uint64_t end = 0;
  for (tensor_facts& each : all) {
    const auto bytes = tensor_bytes(each.type, each.shape);
    if (!bytes)
      return bytes.error().code() == errc::invalid_argument ? bytes.error().with_context(tensor_called(each.name)) : bytes.error();
    const auto next = range_end(end, *bytes);
    if (!next) return unfit(fmt::format("{} would extend past the largest file offset", tensor_called(each.name)));
    each.offset = end;
    each.bytes = *bytes;
    end = *next;
  }
  return {};
}

// all: sorted by type and name.
status check_names(const std::vector<tensor_facts>& all) {
  std::vector<std::string_view> names;
  names.reserve(all.size());
  for (const tensor_facts& each : all) {
    if (!is_utf8(each.name)) return unfit(fmt::format("the name of {} is not UTF-8", tensor_called(each.name)));
    if (each.name == tensors::metadata_key)
      return unfit(fmt::format("\"{}\" is reserved and cannot be a tensor name", tensors::metadata_key));
    names.emplace_back(each.name);
  }
  const auto twice = tensors::repeated(std::move(names));
  return twice ? unfit(fmt::format("{} appears twice", tensor_called(*twice))) : status();
}

std::string little_endian(std::uint64_t number) {
  std::string bytes;
  for (std::size_t i = 0; i < safetensors_length_bytes; ++i) bytes.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  return bytes;
}

// Returns the header's text, including padding.
result<std::string> header_of(const std::vector<tensor_facts>& all, const std::optional<tensor_metadata>& metadata) {
  std::string text = "{";
  if (metadata) {
    if (status error = tensors::check_texts(*metadata); !error.ok()) return error;
    put_metadata(*metadata, text);
  }
  for (const tensor_facts& each : all) {
    if (text.size() > 1) text.push_back(',');
    put_tensor(each, text);
    if (text.size() > most_safetensors_header_bytes) break;
  }
  text.push_back('}');
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > most_safetensors_header_bytes) {
    return unfit(fmt::format("the header for {} tensors would be larger than the safetensors limit of {} bytes", all.size(),
                             most_safetensors_header_bytes));
  }
  return text;
}

result<std::string> make(std::vector<tensor_facts>& tensors, const std::optional<tensor_metadata>& metadata) {
  std::vector<tensor_facts> all = tensors;
  std::ranges::sort(all, [](const tensor_facts& a, const tensor_facts& b) { return a.type != b.type ? a.type > b.type : a.name < b.name; });
  if (status error = check_names(all); !error.ok()) return error;
  if (status error = place(all); !error.ok()) return error;
  auto text = header_of(all, metadata);
  if (!text) return text;
  const std::uint64_t data_offset = safetensors_length_bytes + text->size();
  if (!all.empty() && !range_end(data_offset, all.back().offset + all.back().bytes)) {
    return unfit(fmt::format("{} would extend past the largest file offset", tensor_called(all.back().name)));
  }
  for (tensor_facts& each : all) each.offset += data_offset;
  tensors = std::move(all);
  return little_endian(text->size()) + *text;
}

}  // namespace

result<std::string> make_safetensors(std::vector<tensor_facts>& tensors, const std::optional<tensor_metadata>& metadata) {
  return or_no_memory([&] { return make(tensors, metadata); });
}

}  // namespace penstock
