// Writes GGUF files for tests value by value, so that a test can make any value wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::test_files {

template <class T>
std::string gguf_number(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string gguf_string(std::string_view text) { return gguf_number(std::uint64_t{text.size()}).append(text); }

// Returns a metadata member: key, type number, and the bytes of the value.
inline std::string gguf_pair(std::string_view key, std::uint32_t type, std::string_view value) {
  return gguf_string(key).append(gguf_number(type)).append(value);
}
inline std::string gguf_u32(std::string_view key, std::uint32_t value) { return gguf_pair(key, 4, gguf_number(value)); }
inline std::string gguf_u16(std::string_view key, std::uint16_t value) { return gguf_pair(key, 2, gguf_number(value)); }
inline std::string gguf_text(std::string_view key, std::string_view value) { return gguf_pair(key, 8, gguf_string(value)); }

// Returns the value of an array.
inline std::string gguf_items(std::uint32_t type, const std::vector<std::string>& items) {
  std::string made = gguf_number(type) + gguf_number(std::uint64_t{items.size()});
  for (const std::string& each : items) made += each;
  return made;
}

// dimensions: the fastest-varying one first.
inline std::string gguf_tensor_info(std::string_view name, const std::vector<std::uint64_t>& dimensions, std::uint32_t type,
                                    std::uint64_t offset) {
  std::string made = gguf_string(name) + gguf_number(static_cast<std::uint32_t>(dimensions.size()));
  for (const std::uint64_t each : dimensions) made += gguf_number(each);
  return made + gguf_number(type) + gguf_number(offset);
}

inline std::string gguf_beginning(const std::vector<std::string>& pairs, const std::vector<std::string>& tensors,
                                  std::uint32_t version = 3) {
  std::string made = "GGUF" + gguf_number(version) + gguf_number(std::uint64_t{tensors.size()}) + gguf_number(std::uint64_t{pairs.size()});
  for (const std::string& each : pairs) made += each;
  for (const std::string& each : tensors) made += each;
  return made;
}

// Returns a file: its beginning, padded to the alignment, and the bytes of the tensors.
inline std::string gguf_file(std::string beginning, std::string_view data, std::size_t alignment = 32) {
  beginning.append(-beginning.size() % alignment, '\0');
  return beginning.append(data);
}

}  // namespace penstock::test_files
