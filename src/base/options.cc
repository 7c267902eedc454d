// What the words of the options are. Those of path_kind are declared by the paths (path/registry).
#include "penstock/options.hpp"

#include <array>

namespace penstock {
namespace {

constexpr std::array<std::string_view, 3> names{"automatic", "speed", "cpu"};  // by preference

}  // namespace

std::string_view to_string(preference prefer) noexcept {
  const auto index = static_cast<std::size_t>(prefer);
  return index < names.size() ? names[index] : std::string_view("unknown");
}

result<preference> parse_preference(std::string_view word) {
  std::string message = "preference \"" + std::string(word) + "\" is not one of";
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == word) return static_cast<preference>(i);
    message.append(i == 0 ? " " : ", ").append(names[i]);
  }
  return status(errc::invalid_argument, std::move(message));
}

}  // namespace penstock
