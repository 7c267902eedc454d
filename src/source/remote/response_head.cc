#include "source/remote/response_head.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "base/printable.hpp"

namespace penstock::source::remote {

namespace {

std::string shown(std::string_view text) { return printable_text(std::string(text.substr(0, 40))); }

status wrong(std::string_view what) { return {errc::io, fmt::format("the server's answer is no HTTP: {}", what)}; }

// Some of a head is sent back (ETag), where a carriage return by itself may count as the end of a line.
bool is_control(char c) noexcept { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == '\x7f'; }

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

// A name that comes twice with two values is how answers are smuggled past those who read the other one.
status keep_once(std::string& to, std::string_view value, std::string_view name) {
  if (!to.empty() && to != value) return wrong(fmt::format("it has two headers {}", name));
  to = value;
  return {};
}

status take_length(std::string_view value, response_head& into) {
  std::uint64_t length = 0;
  if (!read_number(value, length) || (into.length && *into.length != length))
    return wrong(fmt::format("its Content-Length is \"{}\"", shown(value)));
  into.length = length;
  return {};
}

status take_transfer_encoding(std::string_view value, response_head& into) {
  if (!same_name(value, "chunked")) return {errc::io, fmt::format("the server sends Transfer-Encoding {}", shown(value))};
  into.chunked = true;
  return {};
}

status parse_line(std::string_view line, response_head& into) {
  const auto colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0 || line[0] == ' ' || line[0] == '\t' || line[colon - 1] == ' ')
    return wrong(fmt::format("\"{}\" is no header", shown(line)));
  const auto name = line.substr(0, colon);
  const auto value = without_space(line.substr(colon + 1));
  if (same_name(name, "content-length")) return take_length(value, into);
  if (same_name(name, "transfer-encoding")) return take_transfer_encoding(value, into);
  if (same_name(name, "connection")) {
    if (same_name(value, "close")) into.closes = true;
    if (same_name(value, "keep-alive")) into.closes = false;
    return {};
  }
  const std::array<std::pair<std::string_view, std::string*>, 9> kept{{{"content-range", &into.range},
                                                                       {"etag", &into.etag},
                                                                       {"last-modified", &into.last_modified},
                                                                       {"content-encoding", &into.encoding},
                                                                       {"location", &into.location},
                                                                       {"retry-after", &into.retry_after},
                                                                       {"date", &into.date},
                                                                       {"x-amz-bucket-region", &into.bucket_region},
                                                                       {"x-amz-meta-penstock-upload", &into.upload_mark}}};
  for (const auto& [known, to] : kept) {
    if (same_name(name, known)) return keep_once(*to, value, known);
  }
  return {};
}

}  // namespace

std::chrono::milliseconds pause_of(std::string_view text) noexcept {
  constexpr unsigned longest = 3600;
  unsigned seconds = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return std::chrono::seconds(read.ec == std::errc() && seconds < longest ? seconds : 0);
}

std::optional<content_range> parse_content_range(std::string_view text) noexcept {
  constexpr std::string_view unit = "bytes ";
  if (!text.starts_with(unit)) return std::nullopt;
  text.remove_prefix(unit.size());
  const auto dash = text.find('-');
  const auto slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return std::nullopt;
  content_range made;
  if (!read_number(text.substr(0, dash), made.first) || !read_number(text.substr(dash + 1, slash - dash - 1), made.last))
    return std::nullopt;
  if (const auto total = text.substr(slash + 1); total != "*") {
    made.total.emplace();
    if (!read_number(total, *made.total) || made.last >= *made.total) return std::nullopt;
  }
  return made.first <= made.last ? std::optional(made) : std::nullopt;
}

std::optional<std::uint64_t> parse_unsatisfied_range(std::string_view text) noexcept {
  constexpr std::string_view unit = "bytes */";
  std::uint64_t total = 0;
  if (!text.starts_with(unit) || !read_number(text.substr(unit.size()), total)) return std::nullopt;
  return total;
}

result<std::size_t> parse_head(std::string_view come, response_head& into) {
  const auto looked_at = come.substr(0, response_head::most_bytes);
  const auto end = looked_at.find("\r\n\r\n");
  if (end == std::string_view::npos) {
    if (come.size() >= response_head::most_bytes)
      return wrong(fmt::format("its headers are longer than {} KiB", response_head::most_bytes >> 10));
    constexpr std::string_view begins = "HTTP/1.";
    const auto seen = come.substr(0, begins.size());
    if (seen != begins.substr(0, seen.size())) return wrong(fmt::format("it begins with \"{}\"", shown(come)));
    return std::size_t{0};
  }
  auto rest = come.substr(0, end + 2);
  std::size_t lines = 0;
  while (!rest.empty()) {
    const auto length = rest.find("\r\n");
    const auto line = rest.substr(0, length);
    if (std::any_of(line.begin(), line.end(), is_control)) return wrong("it has control characters");
    auto problem = lines == 0 ? parse_status_line(line, into) : parse_line(line, into);
    if (!problem.ok()) return problem;
    if (++lines > response_head::most_lines) return wrong(fmt::format("it has more than {} headers", response_head::most_lines));
    rest.remove_prefix(length + 2);
  }
  if (into.chunked && into.length) return wrong("it has both Content-Length and chunks");
  return end + 4;
}

result<chunked_body::step> chunked_body::next(std::string_view come) {
  step made;
  while (left_ == 0 && !ended_) {
    const auto rest = come.substr(made.skip);
    const auto end = rest.find("\r\n");
    if (end == std::string_view::npos) {
      if (rest.size() > most_line) return wrong("a line between its chunks has no end");
      return step{made.skip, 0};
    }
    const auto line = rest.substr(0, end);
    made.skip += end + 2;
    if (last_) {  // trailers, up to an empty line
      ended_ = line.empty();
      if (++trailers_ > most_trailers) return wrong("it has too many headers behind its body");
    } else if (begun_ && line.empty()) {  // behind a chunk
      begun_ = false;
    } else {
      const auto digits = line.substr(0, line.find_first_of("; \t"));
      if (begun_ || digits.size() > 15 || !read_number(digits, left_, 16)) return wrong("the length of a chunk is none");
      last_ = left_ == 0;
      begun_ = left_ > 0;
    }
  }
  made.body = static_cast<std::size_t>(std::min<std::uint64_t>(left_, come.size() - made.skip));
  return made;
}

}  // namespace penstock::source::remote
