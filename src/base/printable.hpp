// Text of whoever knows whom, fit for a terminal and for JSON. A free function; safe from any thread.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

// Replaces every byte that is no part of a character of UTF-8, and every control character, those of two bytes too (U+0080 to U+009F, which
// terminals obey), each byte by a question mark: the length stays.
std::string printable_text(std::string text);

// Whether all of it is characters of UTF-8: in their shortest form, and no half of two.
bool is_utf8(std::string_view text) noexcept;

}  // namespace penstock
