// Headers of tensor files, for tests: written by hand, and random ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/tensors.hpp"

namespace penstock::testing {

// One member of a header.
inline std::string entry(std::string_view name, std::string_view type, std::string_view shape, std::uint64_t begin, std::uint64_t end) {
  return "\"" + std::string(name) + R"(":{"dtype":")" + std::string(type) + R"(","shape":)" + std::string(shape) + R"(,"data_offsets":[)" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

// What a file begins with: the length of the header, and the header.
inline std::string with_length(std::string_view json) {
  std::string made;
  for (unsigned i = 0; i < 8; ++i) made.push_back(static_cast<char>(static_cast<std::uint64_t>(json.size()) >> (8 * i) & 0xff));
  return made.append(json);
}

inline result<tensor_header> parsed(std::string_view json, std::uint64_t data_bytes) {
  return parse_safetensors(json, safetensors_length_bytes + json.size() + data_bytes);
}

// Characters of one to four bytes, and all that must be escaped.
inline std::string random_name(std::mt19937_64& random) {
  static constexpr std::string_view parts[] = {"a", "layer.", "\"", "\\", "/", "\n", "\x01", "\x7f", "é", "層", "😀", "وزن", "\u2028", " "};
  std::string name;
  for (auto length = random() % 12; length > 0; --length) name += parts[random() % std::size(parts)];
  return name;
}

// Of every type; now and then without dimensions or without bytes. Names differ.
inline std::vector<tensor_facts> random_tensors(std::size_t count, std::mt19937_64& random) {
  std::vector<tensor_facts> made(count);
  for (std::size_t i = 0; i < count; ++i) {
    made[i].name = random_name(random) + std::to_string(i);
    made[i].type = static_cast<tensor_type>(random() % tensor_type_count);
    for (auto dimensions = random() % 4; dimensions > 0; --dimensions) made[i].shape.push_back(random() % 6);
    // Elements smaller than a byte come in eights.
    if (bits_of(made[i].type) < 8) made[i].shape.push_back(8);
  }
  return made;
}

}  // namespace penstock::testing
