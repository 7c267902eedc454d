// Runs the penstock command in a terminal of its own.
#pragma once

#include <string>
#include <vector>

namespace penstock::cli_test {

struct terminal_kind {
  std::string term = "xterm";  // TERM; empty: not set
  unsigned short columns = 80;
};

// All that the command wrote to the terminal, as it was written.
std::string run_in_terminal(const std::vector<std::string>& arguments, const terminal_kind& kind = {});

}  // namespace penstock::cli_test
