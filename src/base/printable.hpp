// Makes untrusted text safe for terminals and JSON. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

// Replaces invalid UTF-8 and control characters, including the two-byte ones that terminals interpret (U+0080 to U+009F), with one question
// mark per byte, so the length does not change.
std::string printable_text(std::string text);

// Returns true if the whole text is valid UTF-8 without overlong forms or surrogates.
bool is_utf8(std::string_view text) noexcept;

}  // namespace penstock
