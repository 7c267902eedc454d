#include "cli/models/gguf_words.hpp"

#include <fmt/format.h>

#include <type_traits>
#include <variant>

namespace penstock::cli {
namespace {

using nlohmann::json;

constexpr std::size_t most_shown_items = 8, most_shown_bytes = 120, most_json_items = 100;

template <class T>
constexpr bool is_array = std::is_same_v<T, gguf_array>;

// Never cuts a character in half.
std::string beginning_of(const std::string& text) {
  if (text.size() <= most_shown_bytes) return text;
  std::size_t end = most_shown_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return fmt::format("{}... ({} bytes)", text.substr(0, end), text.size());
}

std::string words_of(const gguf_array& array);

template <class T>
std::string words_of_one(const T& value) {
  if constexpr (is_array<T>) {
    return words_of(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return beginning_of(value);
  } else {
    return fmt::format("{}", value);
  }
}

std::string words_of(const gguf_array& array) {
  if (array.size() > most_shown_items) return fmt::format("{} {}s", array.size(), to_string(array.type()));
  std::string told;
  const auto add = [&](const auto& items) {
    using item = typename std::decay_t<decltype(items)>::value_type;
    for (const auto& each : items) told += fmt::format("{}{}", told.empty() ? "" : ", ", words_of_one<item>(each));
  };
  std::visit(add, array.items);
  return fmt::format("[{}]", told);
}

json json_of(const gguf_array& array);

template <class T>
json json_of_one(const T& value) {
  if constexpr (is_array<T>) {
    return json_of(value);
  } else {
    return value;
  }
}

json json_of(const gguf_array& array) {
  if (array.size() > most_json_items) return {{"type", std::string(to_string(array.type()))}, {"count", array.size()}};
  json list = json::array();
  const auto add = [&](const auto& items) {
    using item = typename std::decay_t<decltype(items)>::value_type;
    for (const auto& each : items) list.push_back(json_of_one<item>(each));
  };
  std::visit(add, array.items);
  return list;
}

}  // namespace

std::string in_words(const gguf_value& value) {
  return std::visit([](const auto& each) { return words_of_one(each); }, value);
}

json as_json(const gguf_value& value) {
  return std::visit([](const auto& each) { return json_of_one(each); }, value);
}

}  // namespace penstock::cli
