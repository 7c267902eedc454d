#include "tensors/header_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/printable.hpp"
#include "tensors/checks.hpp"

namespace penstock::tensors {

namespace {

// Bytes that stand for themselves in a string.
constexpr auto plain = [] {
  std::array<bool, 256> made{};
  for (std::size_t i = 0x20; i < 0x80; ++i) made[i] = i != '"' && i != '\\';
  return made;
}();

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::uint32_t code, std::string& to) {
  const auto put = [&](std::uint32_t byte) { to.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
    }
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

std::optional<std::uint32_t> hex_digit(char c) {
  if (is_digit(c)) return static_cast<std::uint32_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<std::uint32_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<std::uint32_t>(c - 'A' + 10);
  return std::nullopt;
}

// Every step returns whether it could be taken; why it could not is in problem().
class header_reader {
 public:
  explicit header_reader(std::string_view text) : text_(text) {}

  bool read_all(header_text& to) {
    if (text_.empty() || text_[0] != '{') return fail("a header begins with '{'");
    if (!object([&](std::string_view key) { return read_member(key, to); })) return false;
    skip_space();
    return at_ == text_.size() || fail("there is something behind the header's last '}'");
  }

  [[nodiscard]] const status& problem() const { return problem_; }

 private:
  bool read_member(std::string_view key, header_text& to) {
    if (key == metadata_key) return read_metadata(to.metadata);
    to.tensors.emplace_back();
    tensor_facts& tensor = to.tensors.back();
    tensor.name = key;
    tensor_ = &tensor;
    const bool done = read_tensor(tensor);
    tensor_ = nullptr;
    return done;
  }

  bool read_metadata(std::optional<tensor_metadata>& to) {
    if (seen_metadata_) return fail("\"__metadata__\" comes twice");
    seen_metadata_ = true;
    if (taken_null()) return true;  // as if it were not there
    to.emplace();
    return object([&](std::string_view key) {
      std::string name(key);
      std::string_view value;
      skip_space();
      if (peek() != '"') return fail(fmt::format("the value of {} in the metadata is no string", quoted(name)));
      if (!string(value)) return false;
      to->emplace_back(std::move(name), value);
      return true;
    });
  }

  bool read_tensor(tensor_facts& to) {
    bool has_type = false, has_shape = false, has_offsets = false;
    const auto once = [&](bool& has, std::string_view field) {
      if (has) return fail(fmt::format("\"{}\" comes twice", field));
      return has = true;
    };
    const bool done = object([&](std::string_view field) {
      if (field == "dtype") return once(has_type, field) && read_type(to.type);
      if (field == "shape") return once(has_shape, field) && read_shape(to.shape);
      if (field == "data_offsets") return once(has_offsets, field) && read_offsets(to);
      return fail(fmt::format("there is no field {} of tensors", quoted(field)));
    });
    if (!done) return false;
    if (!has_type) return fail("\"dtype\" is missing");
    if (!has_shape) return fail("\"shape\" is missing");
    return has_offsets || fail("\"data_offsets\" is missing");
  }

  bool read_type(tensor_type& to) {
    std::string_view name;
    if (!string(name)) return false;
    const auto type = parse_tensor_type(name);
    if (!type) return fail(type.error().message());
    to = *type;
    return true;
  }

  bool read_shape(std::vector<std::uint64_t>& to) {
    if (!numbers()) return false;
    to = numbers_;  // takes the memory that it needs, at once
    return true;
  }

  bool read_offsets(tensor_facts& to) {
    if (!numbers()) return false;
    if (numbers_.size() != 2) return fail(fmt::format("\"data_offsets\" are two numbers, not {}", numbers_.size()));
    if (numbers_[0] > numbers_[1]) return fail(fmt::format("\"data_offsets\" begin at {} and end at {}", numbers_[0], numbers_[1]));
    to.offset = numbers_[0];
    to.bytes = numbers_[1] - numbers_[0];
    return true;
  }

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

  // Numbers of an array, into numbers_.
  bool numbers() {
    numbers_.clear();
    if (!take('[')) return false;
    if (taken(']')) return true;
    do {
      std::uint64_t value = 0;
      if (!number(value)) return false;
      numbers_.push_back(value);
    } while (taken(','));
    return take(']');
  }

  bool number(std::uint64_t& to) {
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

  // A string, which is valid until the next one is read.
  bool string(std::string_view& to) {
    if (!take('"')) return false;
    const std::size_t begin = at_;
    bool is_ascii = true;
    for (;; ++at_) {
      while (at_ < text_.size() && plain[static_cast<unsigned char>(text_[at_])]) ++at_;
      if (at_ == text_.size()) return fail("a string does not end");
      if (static_cast<unsigned char>(text_[at_]) < 0x80) break;
      is_ascii = false;
    }
    if (text_[at_] != '"') return escaped_string(begin, to);
    to = text_.substr(begin, at_ - begin);
    if (!is_ascii && !is_utf8(to)) return fail("a string is not UTF-8");
    ++at_;
    return true;
  }

  // The same of a string in which something is escaped, or may not be there.
  bool escaped_string(std::size_t begin, std::string_view& to) {
    unescaped_.assign(text_.substr(begin, at_ - begin));
    for (;;) {
      if (at_ == text_.size()) return fail("a string does not end");
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) return fail("a control character stands in a string");
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

  // What follows a backslash.
  bool escape() {
    constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    const char letter = peek();
    ++at_;
    if (letter == 'u') return escaped_code();
    const auto found = letters.find(letter);
    if (found == std::string_view::npos) return fail("a string has an escape that JSON does not know");
    unescaped_.push_back(meanings[found]);
    return true;
  }

  bool escaped_code() {
    std::uint32_t code = 0, second = 0;
    if (!four_digits(code)) return false;
    if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      if (!four_digits(second)) return false;
      if (second >= 0xdc00 && second < 0xe000) code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
    }
    if (code >= 0xd800 && code < 0xe000) return fail("a string has half of a character");
    append_utf8(code, unescaped_);
    return true;
  }

  bool four_digits(std::uint32_t& to) {
    for (int i = 0; i < 4; ++i, ++at_) {
      const auto digit = hex_digit(peek());
      if (!digit) return fail("four hexadecimal digits follow \\u");
      to = to << 4 | *digit;
    }
    return true;
  }

  bool taken_null() {
    skip_space();
    if (text_.substr(at_, 4) != "null") return false;
    at_ += 4;
    return true;
  }

  // The next character, after spaces.
  bool take(char c) { return taken(c) || fail(fmt::format("'{}' is missing", c)); }
  bool taken(char c) {
    skip_space();
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  // 0 at the end, which is no character that may be anywhere.
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  bool fail_at_number() { return fail("there is no whole number of 0 to 18446744073709551615"); }
  bool fail(std::string_view what) {
    const std::string place = fmt::format("at byte {} of the header, {}", std::min(at_, text_.size()), what);
    problem_ = {errc::invalid_argument, tensor_ == nullptr ? place : fmt::format("{}: {}", tensor_called(tensor_->name), place)};
    return false;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string unescaped_;               // the last string that had escapes
  std::vector<std::uint64_t> numbers_;  // the last array
  const tensor_facts* tensor_ = nullptr;
  bool seen_metadata_ = false;
  status problem_;
};

}  // namespace

result<header_text> read_header_text(std::string_view text) {
  header_text read;
  header_reader reader(text);
  if (!reader.read_all(read)) return reader.problem();
  return read;
}

}  // namespace penstock::tensors
