// The names of option values. The names of path_kind are declared by the paths (path/registry).
#include "penstock/options.hpp"

#include <array>
#include <span>

namespace penstock {
namespace {

// Indexed by value.
using words = std::span<const std::string_view>;
constexpr std::array<std::string_view, 3> preferences{"automatic", "speed", "cpu"};
constexpr std::array<std::string_view, 3> cache_uses{"auto", "fill", "bypass"};
constexpr std::array<std::string_view, 2> priorities{"normal", "background"};

template <class Option>
std::string_view word_of(words all, Option option) noexcept {
  const auto index = static_cast<std::size_t>(option);
  return index < all.size() ? all[index] : std::string_view("unknown");
}

template <class Option>
result<Option> parse(words all, std::string_view word, std::string message) {
  message += " \"" + std::string(word) + "\" is not one of";
  const auto is_automatic = [](std::string_view one) { return one == "auto" || one == "automatic"; };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == word || (is_automatic(all[i]) && is_automatic(word))) return static_cast<Option>(i);
    message.append(i == 0 ? " " : ", ").append(all[i]);
  }
  return status(errc::invalid_argument, std::move(message));
}

}  // namespace

std::string_view to_string(preference prefer) noexcept { return word_of(preferences, prefer); }
std::string_view to_string(cache_use cache) noexcept { return word_of(cache_uses, cache); }
std::string_view to_string(request_priority priority) noexcept { return word_of(priorities, priority); }

result<preference> parse_preference(std::string_view word) { return parse<preference>(preferences, word, "preference"); }
result<cache_use> parse_cache_use(std::string_view word) { return parse<cache_use>(cache_uses, word == "keep" ? "fill" : word, "cache"); }
result<request_priority> parse_request_priority(std::string_view word) { return parse<request_priority>(priorities, word, "priority"); }

}  // namespace penstock
