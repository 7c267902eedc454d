// Makes text from unknown sources safe for a terminal and for JSON. Free functions, safe from any thread.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

// Replaces invalid UTF-8 and control characters, including the two-byte ones that terminals obey (U+0080 to U+009F), with one question mark
// per byte, so that the length stays the same.
std::string printable_text(std::string text);

// Whether the whole text is valid UTF-8, without overlong forms and surrogates.
bool is_utf8(std::string_view text) noexcept;

}  // namespace penstock
