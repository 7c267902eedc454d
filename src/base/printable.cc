#include "base/printable.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock {

namespace {

// Of the character that the text begins with; 0 where that is none, or a control character.
std::size_t length_of_character(std::string_view text) {
  constexpr std::array<std::uint32_t, 5> least{0, 0, 0xa0, 0x800, 0x10000};  // shorter forms of a character are none
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc0 || first > 0xf4 || text.size() < length) return 0;
  std::uint32_t code = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool is_half_of_two = code >= 0xd800 && code < 0xe000;
  return code >= least[length] && code <= 0x10ffff && !is_half_of_two ? length : 0;
}

}  // namespace

std::string printable_text(std::string text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto length = length_of_character(std::string_view(text).substr(at));
    if (length == 0) text[at] = '?';
    at += std::max<std::size_t>(length, 1);
  }
  return text;
}

}  // namespace penstock
