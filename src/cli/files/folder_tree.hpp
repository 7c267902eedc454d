// A tree of folders below a folder given by the user, for files whose names come from a server. Folders are created and opened one at a
// time, so that a symbolic link cannot redirect a path outside the tree, even if it is created concurrently. Thread-safe.
#pragma once

#include <string>

#include "cli/common/plain_file.hpp"
#include "penstock/status.hpp"

namespace penstock::cli {

class folder_tree {
 public:
  // Opens the folder given by the user; creates it and its parents if they are missing. Errors: os errors; not_a_file (the path refers to a
  // link or to something that is not a folder).
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
