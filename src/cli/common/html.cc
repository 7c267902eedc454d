#include "cli/common/html.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace penstock::cli {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

// Returns the length of the UTF-8 character at the beginning of the text; 0 if it is invalid or not allowed in XML.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  std::uint32_t code = first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3FU);
  }
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  return code < least[length] || is_surrogate || code > 0x10FFFF || code == 0xFFFE || code == 0xFFFF || code < 0xA0 ? 0 : length;
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const char first = text.front();
    if (length == 0) {
      out += replacement;
    } else if (first == '&') {
      out += "&amp;";
    } else if (first == '<') {
      out += "&lt;";
    } else if (first == '>') {
      out += "&gt;";
    } else if (first == '"') {
      out += "&quot;";
    } else if (first == '\'') {
      out += "&#39;";
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string to_html(const html_table& table) {
  if (table.rows.empty()) return {};
  const auto style = [&](std::size_t column) {
    return column < table.texts || column + table.texts_at_end >= table.columns.size() ? "" : " class=\"n\"";
  };
  std::string out = fmt::format("<div class=\"wide\"><table>\n<caption>{}</caption>\n<thead><tr>", html_text(table.caption));
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    out += fmt::format("<th scope=\"col\"{}>{}</th>", style(i), html_text(table.columns[i]));
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      out +=
          i == 0 ? fmt::format("<th scope=\"row\">{}</th>", html_text(row[i])) : fmt::format("<td{}>{}</td>", style(i), html_text(row[i]));
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace penstock::cli
