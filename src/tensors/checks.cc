#include "tensors/checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/printable.hpp"

namespace penstock::tensors {

std::string quoted(std::string_view text) {
  constexpr std::size_t most = 400;
  return fmt::format("\"{}\"{}", printable_text(std::string(text.substr(0, most))), text.size() > most ? "..." : "");
}

std::string tensor_called(std::string_view name) { return fmt::format("tensor {}", tensors::quoted(name)); }

std::string listed(std::span<const std::string_view> names) {
  std::string told;
  for (const std::string_view each : names.first(std::min(names.size(), most_listed))) {
    told += fmt::format("{}{}", told.empty() ? "" : ", ", tensors::quoted(each));
  }
  return names.size() <= most_listed ? told : fmt::format("{} and {} more", told, names.size() - most_listed);
}

std::optional<std::string_view> repeated(std::vector<std::string_view> names) {
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return std::nullopt;
  return *twice;
}

status check_keys(const tensor_metadata& metadata) {
  std::vector<std::string_view> keys;
  keys.reserve(metadata.size());
  for (const auto& [key, value] : metadata) keys.emplace_back(key);
  const auto twice = repeated(std::move(keys));
  if (!twice) return {};
  return {errc::invalid_argument, fmt::format("the key {} appears twice in the metadata", tensors::quoted(*twice))};
}

status check_texts(const tensor_metadata& metadata) {
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value))
      return {errc::invalid_argument, fmt::format("the metadata key {} or its value is not UTF-8", tensors::quoted(key))};
  }
  return check_keys(metadata);
}

}  // namespace penstock::tensors
