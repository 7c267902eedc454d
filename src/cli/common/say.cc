#include "cli/common/say.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace penstock::cli {
namespace {

constexpr std::size_t usual_columns = 80;

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; }

// Wraps one line, without its line feed.
std::string wrapped_line(std::string_view line, std::size_t columns, std::size_t hang) {
  const std::size_t blanks = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t indent = std::min(blanks + hang, columns / 2);
  std::string out(line.substr(0, blanks));
  line.remove_prefix(blanks);
  std::size_t used = blanks;
  bool is_first = true;
  while (!line.empty()) {
    // Keep the spaces between two words to preserve alignment.
    const std::size_t gap = std::min(line.find_first_not_of(' '), line.size());
    const std::size_t end = std::min(line.find(' ', gap), line.size());
    const std::string_view word = line.substr(gap, end - gap);
    const std::size_t width = width_of(word);
    if (!is_first && used + gap + width > columns) {
      out += '\n' + std::string(indent, ' ');
      used = indent;
    } else {
      out += line.substr(0, gap);
      used += gap;
    }
    out += word;
    used += width;
    is_first = false;
    line.remove_prefix(end);
  }
  return out;
}

}  // namespace

std::size_t columns_of(std::FILE* stream) {
  const int fd = ::fileno(stream);
  if (fd < 0 || ::isatty(fd) != 1) return 0;
  winsize size{};
  const bool known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : usual_columns;
}

std::size_t width_of(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = std::min(text.find('m', i), text.size());
    } else if (!is_continuation(text[i])) {
      ++width;
    }
  }
  return width;
}

std::string wrapped(std::string_view text, std::size_t columns, std::size_t hang) {
  if (columns == 0) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    out += width_of(line) <= columns ? std::string(line) : wrapped_line(line, columns, hang);
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

bool has_colour() {
  const char* refused = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  const bool can = kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
  return can && ::isatty(STDOUT_FILENO) == 1 && (refused == nullptr || *refused == '\0');
}

bool is_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale(value);
    std::ranges::transform(locale, locale.begin(), [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

void put_exactly(std::string_view text) { print_output(text); }

void put_lines(std::string_view text, std::size_t hang) { print_output(wrapped(text, columns_of(stdout), hang)); }

void put_error_lines(std::string_view text, std::size_t hang) { print_error(wrapped(text, columns_of(stderr), hang)); }

}  // namespace penstock::cli
