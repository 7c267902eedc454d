// A pull parser for JSON with a known structure: tensor files and their indexes, and server responses. It skips unknown values up to a
// maximum depth, which bounds stack use. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"

namespace penstock {

// Each step returns true on success; otherwise problem() returns the error.
class json_reader {
 public:
  // what: how messages refer to the text, such as "the header".
  json_reader(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  // invalid_argument; the message contains the byte offset in the text.
  [[nodiscard]] const status& problem() const { return problem_; }
  // Prefixes the problem with "context: ". Returns false, like a failed step.
  bool fail_in(std::string_view context);
  bool fail(std::string_view what);

  // Calls member(key) for each member of an object; member must read the value. The key is valid until another string is read.
  template <class Member>
  bool object(Member&& member) {
    if (!take('{')) return false;
    if (taken('}')) return true;
    do {
      std::string_view key;
      if (!string(key)) return false;
      if (!take(':') || !member(key)) return false;
    } while (taken(','));
    return take('}');
  }
  bool number(std::uint64_t& to);  // a whole number
  // Reads an array of whole numbers; replaces the contents of to.
  bool numbers(std::vector<std::uint64_t>& to);
  // Reads a string, which is valid until the next one is read.
  bool string(std::string_view& to);
  // Reads "null" if it comes next. Returns true if it did.
  bool taken_null() { return taken_word("null"); }
  // Skips any value. depth: the maximum nesting of arrays and objects in it.
  bool skip(int depth);
  // Succeeds if only white space is left.
  bool end();

  // Returns the next character after white space; 0 at the end (no valid JSON contains it).
  [[nodiscard]] char next() {
    skip_space();
    return peek();
  }

 private:
  bool skip_array(int depth);
  bool skip_number();
  bool skip_digits();
  bool escaped_string(std::size_t begin, std::string_view& to);
  bool escape();
  bool escaped_code();
  bool four_digits(std::uint32_t& to);
  bool taken_word(std::string_view word);
  bool take(char c);
  bool taken(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  bool fail_at_number();
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  std::string_view text_;
  std::string_view what_;
  std::size_t at_ = 0;
  std::string unescaped_;  // the last string that had escapes
  status problem_;
};

}  // namespace penstock
