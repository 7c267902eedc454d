#include "base/json_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/printable.hpp"
#include "base/utf8.hpp"

namespace penstock {

namespace {

// Bytes of a string that need no decoding.
constexpr auto plain = [] {
  std::array<bool, 256> made{};
  for (std::size_t i = 0x20; i < 0x80; ++i) made[i] = i != '"' && i != '\\';
  return made;
}();

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<std::uint32_t> hex_digit(char c) {
  if (is_digit(c)) return static_cast<std::uint32_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<std::uint32_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<std::uint32_t>(c - 'A' + 10);
  return std::nullopt;
}

}  // namespace

bool json_reader::numbers(std::vector<std::uint64_t>& to) {
  to.clear();
  if (!take('[')) return false;
  if (taken(']')) return true;
  do {
    std::uint64_t value = 0;
    if (!number(value)) return false;
    to.push_back(value);
  } while (taken(','));
  return take(']');
}

bool json_reader::number(std::uint64_t& to) {
  skip_space();
  if (!is_digit(peek())) return fail_at_number();
  if (peek() == '0' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1])) return fail_at_number();
  to = 0;
  for (; is_digit(peek()); ++at_) {
    if (__builtin_mul_overflow(to, 10U, &to) || __builtin_add_overflow(to, static_cast<unsigned>(peek() - '0'), &to))
      return fail_at_number();
  }
  return (peek() != '.' && peek() != 'e' && peek() != 'E') || fail_at_number();
}

bool json_reader::string(std::string_view& to) {
  if (!take('"')) return false;
  const std::size_t begin = at_;
  bool is_ascii = true;
  for (;; ++at_) {
    while (at_ < text_.size() && plain[static_cast<unsigned char>(text_[at_])]) ++at_;
    if (at_ == text_.size()) return fail("a string is not terminated");
    if (static_cast<unsigned char>(text_[at_]) < 0x80) break;
    is_ascii = false;
  }
  if (text_[at_] != '"') return escaped_string(begin, to);
  to = text_.substr(begin, at_ - begin);
  if (!is_ascii && !is_utf8(to)) return fail("a string is not UTF-8");
  ++at_;
  return true;
}

// Reads the rest of a string that contains escapes or invalid bytes.
bool json_reader::escaped_string(std::size_t begin, std::string_view& to) {
  unescaped_.assign(text_.substr(begin, at_ - begin));
  for (;;) {
    if (at_ == text_.size()) return fail("a string is not terminated");
    const char c = text_[at_];
    if (static_cast<unsigned char>(c) < 0x20) return fail("a string contains a control character");
    if (c == '"') break;
    ++at_;
    if (c != '\\') {
      unescaped_.push_back(c);
    } else if (!escape()) {
      return false;
    }
  }
  if (!is_utf8(unescaped_)) return fail("a string is not UTF-8");
  ++at_;
  to = unescaped_;
  return true;
}

// Decodes an escape after its backslash.
bool json_reader::escape() {
  constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
  const char letter = peek();
  ++at_;
  if (letter == 'u') return escaped_code();
  const auto found = letters.find(letter);
  if (found == std::string_view::npos) return fail("a string contains an invalid escape");
  unescaped_.push_back(meanings[found]);
  return true;
}

bool json_reader::escaped_code() {
  std::uint32_t code = 0, second = 0;
  if (!four_digits(code)) return false;
  if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    if (!four_digits(second)) return false;
    if (second >= 0xdc00 && second < 0xe000) code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
  }
  if (code >= 0xd800 && code < 0xe000) return fail("a string contains an unpaired surrogate");
  append_utf8(code, unescaped_);
  return true;
}

bool json_reader::four_digits(std::uint32_t& to) {
  for (int i = 0; i < 4; ++i, ++at_) {
    const auto digit = hex_digit(peek());
    if (!digit) return fail("\\u must be followed by four hexadecimal digits");
    to = to << 4 | *digit;
  }
  return true;
}

bool json_reader::skip(int depth) {
  const char c = next();
  std::string_view ignored;
  if (c == '"') return string(ignored);
  if (c == '-' || is_digit(c)) return skip_number();
  if (taken_word("true") || taken_word("false") || taken_null()) return true;
  if (c != '{' && c != '[') return fail("a value is missing");
  if (depth == 0) return fail("the nesting is too deep");
  return c == '[' ? skip_array(depth) : object([&](std::string_view) { return skip(depth - 1); });
}

bool json_reader::skip_array(int depth) {
  if (!take('[')) return false;
  if (taken(']')) return true;
  do {
    if (!skip(depth - 1)) return false;
  } while (taken(','));
  return take(']');
}

bool json_reader::skip_number() {
  if (peek() == '-') ++at_;
  if (peek() == '0') {
    ++at_;
  } else if (!skip_digits()) {
    return false;
  }
  if (peek() == '.') {
    ++at_;
    if (!skip_digits()) return false;
  }
  if (peek() != 'e' && peek() != 'E') return true;
  ++at_;
  if (peek() == '+' || peek() == '-') ++at_;
  return skip_digits();
}

bool json_reader::skip_digits() {
  if (!is_digit(peek())) return fail("a digit is missing");
  while (is_digit(peek())) ++at_;
  return true;
}

bool json_reader::end() {
  skip_space();
  return at_ == text_.size() || fail(fmt::format("there is data after the final '}}' of {}", what_));
}

bool json_reader::taken_word(std::string_view word) {
  skip_space();
  if (text_.substr(at_, word.size()) != word) return false;
  at_ += word.size();
  return true;
}

bool json_reader::take(char c) { return taken(c) || fail(fmt::format("'{}' is missing", c)); }

bool json_reader::fail_at_number() { return fail("expected a whole number from 0 to 18446744073709551615"); }

bool json_reader::fail(std::string_view what) {
  problem_ = {errc::invalid_argument, fmt::format("at byte {} of {}, {}", std::min(at_, text_.size()), what_, what)};
  return false;
}

bool json_reader::fail_in(std::string_view context) {
  problem_ = problem_.with_context(context);
  return false;
}

}  // namespace penstock
