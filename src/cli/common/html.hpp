// Text for HTML pages that are also valid XML. Free functions; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// Escapes characters that are special in XML, and replaces those that are invalid in XML (control characters, U+FFFE, invalid UTF-8) with
// U+FFFD.
std::string html_text(std::string_view text);

struct html_table {
  std::string caption;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // the first cell is the header of its row
  std::size_t texts = 1;                       // number of text columns at the left; the others contain figures
  std::size_t texts_at_end = 0;                // number of text columns at the right
};

// Escapes all texts. Returns an empty string for a table without rows.
std::string to_html(const html_table& table);

}  // namespace penstock::cli
