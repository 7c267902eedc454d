// Text of whoever knows whom, fit for a terminal and for JSON. A free function; safe from any thread.
#pragma once

#include <string>

namespace penstock {

// Replaces every byte that is no part of a character of UTF-8, and every control character, those of two bytes too (U+0080 to U+009F, which
// terminals obey), each byte by a question mark: the length stays.
std::string printable_text(std::string text);

}  // namespace penstock
