// What the words of the options are. Those of path_kind are declared by the paths (path/registry).
#include "penstock/options.hpp"

#include <array>

namespace penstock {
namespace {

// By value.
using words = std::array<std::string_view, 3>;
constexpr words preferences{"automatic", "speed", "cpu"};
constexpr words cache_uses{"auto", "keep", "bypass"};

template <class Option>
std::string_view word_of(const words& all, Option option) noexcept {
  const auto index = static_cast<std::size_t>(option);
  return index < all.size() ? all[index] : std::string_view("unknown");
}

template <class Option>
result<Option> parse(const words& all, std::string_view word, std::string message) {
  message += " \"" + std::string(word) + "\" is not one of";
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == word) return static_cast<Option>(i);
    message.append(i == 0 ? " " : ", ").append(all[i]);
  }
  return status(errc::invalid_argument, std::move(message));
}

}  // namespace

std::string_view to_string(preference prefer) noexcept { return word_of(preferences, prefer); }
std::string_view to_string(cache_use cache) noexcept { return word_of(cache_uses, cache); }

result<preference> parse_preference(std::string_view word) { return parse<preference>(preferences, word, "preference"); }
result<cache_use> parse_cache_use(std::string_view word) { return parse<cache_use>(cache_uses, word, "cache"); }

}  // namespace penstock
