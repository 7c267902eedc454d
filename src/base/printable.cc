#include "base/printable.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock {

namespace {

struct character {
  std::size_t length = 0;  // in bytes; 0: no valid character
  std::uint32_t code = 0;
};

// Decodes the first character of a text.
character first_character(std::string_view text) {
  constexpr std::array<std::uint32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};  // smaller codes would be overlong
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {1, first};
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc0 || first > 0xf4 || text.size() < length) return {};
  std::uint32_t code = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool is_half_of_two = code >= 0xd800 && code < 0xe000;
  return code >= least[length] && code <= 0x10ffff && !is_half_of_two ? character{length, code} : character{};
}

bool is_control(std::uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

}  // namespace

std::string printable_text(std::string text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto [length, code] = first_character(std::string_view(text).substr(at));
    if (length == 0 || is_control(code)) std::fill_n(text.begin() + static_cast<std::ptrdiff_t>(at), std::max<std::size_t>(length, 1), '?');
    at += std::max<std::size_t>(length, 1);
  }
  return text;
}

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = first_character(text).length;
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace penstock
