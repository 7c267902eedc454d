// Predicts which file the dynamic linker of a machine would load for a name (ld.so(8)). Blocks while it reads small files.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "machine/tree.hpp"

namespace penstock::machine {

// Returns names and paths of the 64-bit libraries in an ld.so.cache, in its order. Empty if the bytes are in another format; stops early if
// the cache is truncated.
std::vector<std::pair<std::string, std::string>> read_loader_cache(std::string_view bytes);

struct found_library {
  std::string file;  // with all links resolved
  std::string how;   // "LD_LIBRARY_PATH"
};

class loader {
 public:
  // Uses the environment in /proc/self/environ.
  explicit loader(const tree& from);
  [[nodiscard]] std::string variable(std::string_view name) const;  // empty: not set
  // Finds a library for a program without RPATH and RUNPATH.
  [[nodiscard]] std::optional<found_library> find(const std::string& name) const;
  // Returns the entries of LD_PRELOAD whose file names contain part.
  [[nodiscard]] std::vector<std::string> preloaded(std::string_view part) const;

 private:
  const tree& from_;
  std::string environment_;
  std::vector<std::pair<std::string, std::string>> cache_;
};

}  // namespace penstock::machine
