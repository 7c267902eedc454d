// Examples of each command, for `penstock help`, the manual pages and docs/reference/commands.md. Constants; thread-safe.
#pragma once

#include <span>
#include <string_view>

namespace penstock::cli {

struct example {
  std::string_view command;  // empty: an example of the program itself
  std::string_view line;     // the command line to type
  std::string_view purpose;
  bool runs = true;  // runs in a folder with the files of earlier examples; false: needs a GPU, a server or a process, or does not end
};

// Returns the examples in the order of the commands. A test runs those that can run, and checks that the options of the others exist.
std::span<const example> all_examples() noexcept;

}  // namespace penstock::cli
