// A tree of folders below one that the user named, for files with names from a server. Folders are created and opened one by one, so that a
// symbolic link cannot redirect a path outside the tree, even if somebody creates it meanwhile. Thread-safe.
#pragma once

#include <string>

#include "cli/common/plain_file.hpp"
#include "penstock/status.hpp"

namespace penstock::cli {

class folder_tree {
 public:
  // Opens the folder that the user named; creates it and its parents if they are missing. Errors: os errors; not_a_file (the name belongs
  // to a link or to something that is not a folder).
  static result<folder_tree> open(const std::string& path);

  // Opens a folder below this one; creates it if it is missing. path: relative, without "..". Errors: as above.
  [[nodiscard]] result<owned_fd> enter(const std::string& path) const;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  folder_tree(std::string path, owned_fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  owned_fd fd_;
};

}  // namespace penstock::cli
