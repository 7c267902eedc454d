// The files that describe a machine (/proc, /sys, /etc, ...), below a folder that stands in for "/": this machine's own, or a copy from
// another machine. Opens nothing for writing. Thread-safe; blocks only to read small files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::machine {

// Everything read from a tree, by path: the first bytes, at most 256 KiB; empty for a file that is missing or unreadable.
using tree_log = std::map<std::string, std::optional<std::string>>;

class tree {
 public:
  explicit tree(std::string root = "/");
  // Returns true for "/": this process can then also make system calls, not only read files.
  [[nodiscard]] bool is_this_machine() const { return root_.empty(); }
  // Returns the path under which this process finds that machine's file `path`, which must begin with '/'.
  [[nodiscard]] std::string outside(const std::string& path) const { return root_ + path; }

  // Records everything read after this call; the tree is then not thread-safe. Null stops recording.
  void log_to(tree_log* log) { log_ = log; }

  [[nodiscard]] bool exists(const std::string& path) const;
  // Returns a whole file, or its first `most` bytes; nothing if it is missing or unreadable.
  [[nodiscard]] std::optional<std::string> read(const std::string& path, std::size_t most = std::size_t{4} << 20) const;
  // Returns the first line without surrounding blanks; empty if there is none.
  [[nodiscard]] std::string line(const std::string& path) const;
  [[nodiscard]] std::optional<std::uint64_t> number(const std::string& path) const;
  // Returns the names in a folder, sorted.
  [[nodiscard]] std::vector<std::string> list(const std::string& folder) const;
  // Returns the path without links, as seen on that machine; empty if it does not exist.
  [[nodiscard]] std::string real(const std::string& path) const;
  // Returns the last part of a link's target: the name of a driver or a group.
  [[nodiscard]] std::string target_name(const std::string& link) const;

 private:
  [[nodiscard]] std::optional<std::string> read_file(const std::string& path, std::size_t most) const;
  tree_log* log_ = nullptr;
  std::string root_;  // without a trailing '/'; empty for this machine
};

// --- parsing the contents of these files
std::string trimmed(const std::string& text);
std::vector<std::string> lines_of(const std::string& text);
std::vector<std::string> words_of(const std::string& text, char separator = ' ');  // without empty words
// Returns the text after "name:" or "name=" in the first line that begins with it; empty if there is no such line.
std::string value_of(const std::string& text, const std::string& name, char separator = ':');

}  // namespace penstock::machine
