#include "penstock/options.hpp"

#include <array>
#include <span>

namespace penstock {
namespace {

constexpr std::array<std::string_view, path_kind_count> path_names{"automatic", "posix", "staged", "mapped", "direct"};
constexpr std::array<std::string_view, 3> preference_names{"automatic", "speed", "cpu"};

// names[i] is the word for the enumerator with value i.
template <class Enum>
result<Enum> parse(std::string_view word, std::string_view what, std::span<const std::string_view> names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == word) return static_cast<Enum>(i);
  }
  std::string message(what);
  message.append(" \"").append(word).append("\" is not one of");
  for (std::size_t i = 0; i < names.size(); ++i) message.append(i == 0 ? " " : ", ").append(names[i]);
  return status(errc::invalid_argument, std::move(message));
}

std::string_view name_of(std::size_t value, std::span<const std::string_view> names) noexcept {
  return value < names.size() ? names[value] : std::string_view("unknown");
}

}  // namespace

std::string_view to_string(path_kind path) noexcept { return name_of(static_cast<std::size_t>(path), path_names); }
std::string_view to_string(preference prefer) noexcept { return name_of(static_cast<std::size_t>(prefer), preference_names); }

result<path_kind> parse_path_kind(std::string_view word) { return parse<path_kind>(word, "path", path_names); }
result<preference> parse_preference(std::string_view word) { return parse<preference>(word, "preference", preference_names); }

}  // namespace penstock
