// The files in which a machine describes itself (/proc, /sys, /etc, ...), below a folder that stands in the place of "/": that of this
// machine, or a copy that another one has left. Nothing is opened for writing. Thread-safe; blocks only to read small files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::machine {

// What has been read of a tree, by path: its first bytes, at most 256 KiB; nothing of what is missing or may not be read.
using tree_log = std::map<std::string, std::optional<std::string>>;

class tree {
 public:
  explicit tree(std::string root = "/");
  // True for "/": then this process may also be asked, and not only files.
  [[nodiscard]] bool is_this_machine() const { return root_.empty(); }
  // Where this process finds what the machine calls path, which begins with '/'.
  [[nodiscard]] std::string outside(const std::string& path) const { return root_ + path; }

  // From here on all that is read is noted there; the tree is then of one thread. Null: no longer.
  void log_to(tree_log* log) { log_ = log; }

  [[nodiscard]] bool exists(const std::string& path) const;
  // All of a file, or its first most bytes. Nothing where it is missing or may not be read.
  [[nodiscard]] std::optional<std::string> read(const std::string& path, std::size_t most = std::size_t{4} << 20) const;
  // The first line without blanks around it; empty where there is none.
  [[nodiscard]] std::string line(const std::string& path) const;
  [[nodiscard]] std::optional<std::uint64_t> number(const std::string& path) const;
  // Names in a folder, sorted.
  [[nodiscard]] std::vector<std::string> list(const std::string& folder) const;
  // The path without links in it, as the machine calls it; empty where nothing is there.
  [[nodiscard]] std::string real(const std::string& path) const;
  // The last part of what a link leads to: the name of a driver, of a group.
  [[nodiscard]] std::string target_name(const std::string& link) const;

 private:
  [[nodiscard]] std::optional<std::string> read_file(const std::string& path, std::size_t most) const;
  tree_log* log_ = nullptr;
  std::string root_;  // without '/' at its end; empty for this machine
};

// --- words of such files
std::string trimmed(const std::string& text);
std::vector<std::string> lines_of(const std::string& text);
std::vector<std::string> words_of(const std::string& text, char separator = ' ');  // no empty ones
// What stands behind "name:" or "name=" in one of the lines; empty where none begins so.
std::string value_of(const std::string& text, const std::string& name, char separator = ':');

}  // namespace penstock::machine
