// Text for HTML pages that are XML as well. Free functions; safe from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// What XML has a meaning for is escaped; what it cannot hold (control characters, U+FFFE, bytes that are no UTF-8) becomes U+FFFD.
std::string html_text(std::string_view text);

struct html_table {
  std::string caption;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // the first cell names its row
  std::size_t texts = 1;                       // so many columns from the left hold words; the others hold figures
  std::size_t texts_at_end = 0;                // and so many from the right
};

// All texts are escaped here. A table without rows is nothing.
std::string to_html(const html_table& table);

}  // namespace penstock::cli
