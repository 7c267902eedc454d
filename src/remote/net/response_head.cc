#include "remote/net/response_head.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "base/printable.hpp"

namespace penstock::source::remote {

namespace {

std::string shown(std::string_view text) { return printable_text(std::string(text.substr(0, 40))); }

status wrong(std::string_view what) { return {errc::io, fmt::format("the server's response is not valid HTTP: {}", what)}; }

bool is_control_in_header(char c) noexcept { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == '\x7f'; }
// Other programs treat these as the end of a line or of a string.
bool is_break(char c) noexcept { return c == '\r' || c == '\0'; }

bool same_name(std::string_view name, std::string_view lower) noexcept {
  return std::equal(name.begin(), name.end(), lower.begin(), lower.end(),
                    [](char one, char other) { return (one >= 'A' && one <= 'Z' ? one + ('a' - 'A') : one) == other; });
}

std::string_view without_space(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

template <class Number>
bool read_number(std::string_view text, Number& to, int base = 10) noexcept {
  const auto* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, to, base);
  return !text.empty() && read.ec == std::errc() && read.ptr == end;
}

// "HTTP/1.1 206 Partial Content"
status parse_status_line(std::string_view line, response_head& into) {
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ' || !read_number(line.substr(9, 3), into.status) ||
      (line.size() > 12 && line[12] != ' ')) {
    return wrong(fmt::format("it begins with \"{}\"", shown(line)));
  }
  into.closes = line[7] == '0';
  return {};
}

// Keeps the first of repeated headers, as libcurl does. Ignores values with control characters, because some values (ETag) are sent back.
void keep_first(std::string& to, std::string_view value) {
  if (to.empty() && std::none_of(value.begin(), value.end(), is_control_in_header)) to = value;
}

// Rejects two different ranges, which could cause a response's bytes to be mistaken for others.
status take_range(std::string_view value, response_head& into) {
  if (!into.range.empty() && into.range != value) return wrong("it contains two different Content-Range headers");
  keep_first(into.range, value);
  return {};
}

void take_encoding(std::string_view value, response_head& into) {
  if (!into.encoding.empty()) into.encoding += ", ";
  into.encoding += printable_text(std::string(value));
}

// Removes and returns the first word of a list.
std::string_view take_word(std::string_view& list) noexcept {
  const auto one = list.substr(0, list.find(','));
  list.remove_prefix(std::min(one.size() + 1, list.size()));
  return without_space(one);
}

// Returns true if a list contains the word.
bool has_word(std::string_view list, std::string_view lower) noexcept {
  while (!list.empty()) {
    if (same_name(take_word(list), lower)) return true;
  }
  return false;
}

status take_length(std::string_view value, response_head& into) {
  std::uint64_t length = 0;
  if (!read_number(value, length) || (into.length && *into.length != length))
    return wrong(fmt::format("its Content-Length is \"{}\"", shown(value)));
  into.length = length;
  return {};
}

status take_transfer_encoding(std::string_view value, response_head& into) {
  while (!value.empty()) {
    const auto one = take_word(value);
    if (same_name(one, "identity") || one.empty()) continue;
    if (!same_name(one, "chunked")) return {errc::io, fmt::format("the server sent the unsupported Transfer-Encoding {}", shown(one))};
    into.chunked = true;
  }
  return {};
}

status parse_line(std::string_view line, response_head& into) {
  const auto colon = line.find(':');
  if (colon == std::string_view::npos) return wrong(fmt::format("\"{}\" is not a header", shown(line)));
  const auto name = without_space(line.substr(0, colon));
  const auto value = without_space(line.substr(colon + 1));
  if (same_name(name, "content-length")) return take_length(value, into);
  if (same_name(name, "transfer-encoding")) return take_transfer_encoding(value, into);
  if (same_name(name, "content-range")) return take_range(value, into);
  if (same_name(name, "content-encoding")) take_encoding(value, into);
  if (same_name(name, "connection")) {
    if (has_word(value, "close")) into.closes = true;
    if (has_word(value, "keep-alive")) into.closes = false;
  }
  const std::array<std::pair<std::string_view, std::string*>, 7> kept{{{"etag", &into.etag},
                                                                       {"last-modified", &into.last_modified},
                                                                       {"location", &into.location},
                                                                       {"retry-after", &into.retry_after},
                                                                       {"date", &into.date},
                                                                       {"x-amz-bucket-region", &into.bucket_region},
                                                                       {"x-amz-meta-penstock-upload", &into.upload_mark}}};
  for (const auto& [known, to] : kept) {
    if (same_name(name, known)) keep_first(*to, value);
  }
  return {};
}

// A line and its ending: LF, usually after CR. length 0: incomplete.
struct text_line {
  std::string_view text;
  std::size_t length = 0;
};
text_line first_line(std::string_view come) noexcept {
  const auto end = come.find('\n');
  if (end == std::string_view::npos) return {};
  return {come.substr(0, end > 0 && come[end - 1] == '\r' ? end - 1 : end), end + 1};
}

// Returns the length of the head, including the empty line; 0: incomplete.
std::size_t length_of_head(std::string_view come) noexcept {
  for (std::size_t at = 0;;) {
    const auto line = first_line(come.substr(at));
    if (line.length == 0) return 0;
    at += line.length;
    if (line.text.empty()) return at;
  }
}

status parse_lines(std::string_view rest, response_head& into) {
  const auto first = first_line(rest);
  auto problem = parse_status_line(first.text, into);
  rest.remove_prefix(first.length);
  std::string_view header;  // the next line may continue it
  std::string longer;
  while (problem.ok()) {
    const auto line = first_line(rest);
    rest.remove_prefix(line.length);
    if (std::any_of(line.text.begin(), line.text.end(), is_break)) return wrong("it contains control characters");
    const bool goes_on = line.text.starts_with(' ') || line.text.starts_with('\t');
    if (goes_on && !header.empty()) {
      longer = fmt::format("{} {}", header, without_space(line.text));
      header = longer;
      continue;
    }
    if (!header.empty()) problem = parse_line(header, into);
    if (line.text.empty()) break;
    header = goes_on ? std::string_view() : line.text;
  }
  return problem;
}

// Returns the text after the unit in "bytes 0-1/2" or "bytes */2". Servers also send "bytes: 0-1/2", "bytes=0-1/2" and "0-1/2".
std::optional<std::string_view> behind_unit(std::string_view text) noexcept {
  constexpr std::string_view unit = "bytes";
  if (same_name(text.substr(0, unit.size()), unit)) text.remove_prefix(unit.size());
  text.remove_prefix(std::min(text.find_first_not_of(" \t:="), text.size()));
  const bool is_range = !text.empty() && (text.front() == '*' || (text.front() >= '0' && text.front() <= '9'));
  return is_range ? std::optional(text) : std::nullopt;
}

}  // namespace

std::chrono::milliseconds pause_of(std::string_view text) noexcept {
  constexpr unsigned longest = 3600;
  unsigned seconds = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return std::chrono::seconds(read.ec == std::errc() && seconds < longest ? seconds : 0);
}

std::optional<content_range> parse_content_range(std::string_view text) noexcept {
  const auto range = behind_unit(text);
  if (!range) return std::nullopt;
  text = *range;
  const auto dash = text.find('-');
  const auto slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return std::nullopt;
  content_range made;
  if (!read_number(without_space(text.substr(0, dash)), made.first) ||
      !read_number(without_space(text.substr(dash + 1, slash - dash - 1)), made.last))
    return std::nullopt;
  if (const auto total = without_space(text.substr(slash + 1)); total != "*") {
    made.total.emplace();
    if (!read_number(total, *made.total) || made.last >= *made.total) return std::nullopt;
  }
  return made.first <= made.last ? std::optional(made) : std::nullopt;
}

std::optional<std::uint64_t> parse_unsatisfied_range(std::string_view text) noexcept {
  const auto range = behind_unit(text);
  std::uint64_t total = 0;
  if (!range || !range->starts_with('*')) return std::nullopt;
  const auto rest = without_space(range->substr(1));
  if (!rest.starts_with('/') || !read_number(without_space(rest.substr(1)), total)) return std::nullopt;
  return total;
}

result<std::size_t> parse_head(std::string_view come, response_head& into) {
  const auto length = length_of_head(come.substr(0, response_head::most_bytes));
  if (length == 0) {
    if (come.size() >= response_head::most_bytes)
      return wrong(fmt::format("its headers are larger than {} KiB", response_head::most_bytes >> 10));
    constexpr std::string_view begins = "HTTP/1.";
    const auto seen = come.substr(0, begins.size());
    if (seen != begins.substr(0, seen.size())) return wrong(fmt::format("it begins with \"{}\"", shown(come)));
    return std::size_t{0};
  }
  if (auto problem = parse_lines(come.substr(0, length), into); !problem.ok()) return problem;
  if (into.chunked && into.length) {  // chunks take precedence (RFC 9112, 6.3), and the connection is not reused
    into.length.reset();
    into.closes = true;
  }
  return length;
}

result<chunked_body::step> chunked_body::next(std::string_view come) {
  step made;
  while (left_ == 0 && !ended_) {
    const auto rest = come.substr(made.skip);
    const auto [line, length] = first_line(rest);
    if (length == 0) {
      if (rest.size() > most_line) return wrong("a line between its chunks is too long");
      return step{made.skip, 0};
    }
    made.skip += length;
    if (last_) {  // trailers, until an empty line
      ended_ = line.empty();
      if (++trailers_ > most_trailers) return wrong("it contains too many trailer fields");
    } else if (begun_ && line.empty()) {  // after a chunk
      begun_ = false;
    } else {
      auto digits = without_space(line.substr(0, line.find(';')));
      while (digits.size() > 1 && digits.starts_with('0')) digits.remove_prefix(1);
      if (begun_ || digits.size() > 15 || !read_number(digits, left_, 16)) return wrong("a chunk length is not a number");
      last_ = left_ == 0;
      begun_ = left_ > 0;
    }
  }
  made.body = static_cast<std::size_t>(std::min<std::uint64_t>(left_, come.size() - made.skip));
  return made;
}

}  // namespace penstock::source::remote
