// Examples of each command, for `penstock help`, the manual pages and docs/reference/commands.md. Constants; safe from any thread.
#pragma once

#include <span>
#include <string_view>

namespace penstock::cli {

struct example {
  std::string_view command;  // empty: of the program itself
  std::string_view line;     // what you type
  std::string_view purpose;
  bool runs = true;  // in a folder with the files of the examples before it; false: it needs a GPU, a server, or a process, or goes on
};

// In the order of the commands. A test runs those that can run, and looks for the options of the others.
std::span<const example> all_examples() noexcept;

}  // namespace penstock::cli
