// Reads JSON, value by value, as its callers know it to be: tensor files and their indexes, and what servers answer. What nobody knows is
// skipped, to a depth that is bounded, so no text takes more stack than that. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"

namespace penstock {

// Every step returns whether it could be taken; why it could not is in problem().
class json_reader {
 public:
  // what: the text in messages, such as "the header".
  json_reader(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  // invalid_argument; the message tells the byte of the text.
  [[nodiscard]] const status& problem() const { return problem_; }
  // Puts "context: " in front of the problem. Returns false, as a step that could not be taken.
  bool fail_in(std::string_view context);
  bool fail(std::string_view what);

  // Calls member(key) for each member of an object; it reads the value. The key is valid until another string is read.
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
  bool number(std::uint64_t& to);  // a whole one
  // An array of whole numbers, which are valid until the next one is read.
  bool numbers(std::vector<std::uint64_t>& to);
  // A string, which is valid until the next one is read.
  bool string(std::string_view& to);
  // True: it was "null".
  bool taken_null() { return taken_word("null"); }
  // Any value, in which arrays and objects are nested so deep at most.
  bool skip(int depth);
  // That nothing but spaces follows.
  bool end();

  // The next character, after spaces; 0 at the end, which is no character that may be anywhere.
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
