// What the dynamic linker of a machine would load by a name (ld.so(8)). Blocks to read small files.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "machine/tree.hpp"

namespace penstock::machine {

// Names and paths of an ld.so.cache, of libraries for 64 bits, in its order. What is no such cache has none; what is cut short ends early.
std::vector<std::pair<std::string, std::string>> read_loader_cache(std::string_view bytes);

struct found_library {
  std::string file;  // with all links followed
  std::string how;   // "LD_LIBRARY_PATH"
};

class loader {
 public:
  // The environment is that of /proc/self/environ.
  explicit loader(const tree& from);
  [[nodiscard]] std::string variable(std::string_view name) const;  // empty: not set
  // For a program with no RPATH and no RUNPATH.
  [[nodiscard]] std::optional<found_library> find(const std::string& name) const;
  // Entries of LD_PRELOAD with this in the name of their file.
  [[nodiscard]] std::vector<std::string> preloaded(std::string_view part) const;

 private:
  const tree& from_;
  std::string environment_;
  std::vector<std::pair<std::string, std::string>> cache_;
};

}  // namespace penstock::machine
