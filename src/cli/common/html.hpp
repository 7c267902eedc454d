// Text for HTML pages that are also valid XML. Free functions; safe from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// Escapes characters that are special in XML, and replaces those that XML cannot hold (control characters, U+FFFE, invalid UTF-8) by
// U+FFFD.
std::string html_text(std::string_view text);

struct html_table {
  std::string caption;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // the first cell names its row
  std::size_t texts = 1;                       // number of columns at the left that hold words; the others hold figures
  std::size_t texts_at_end = 0;                // number of columns at the right that hold words
};

// Escapes all texts. Returns an empty string for a table without rows.
std::string to_html(const html_table& table);

}  // namespace penstock::cli
