// Folders below one that the user named, for files whose names a server gives. They are made and entered one by one, so that no link among
// them leads anywhere else, even if somebody puts it there meanwhile. Thread-safe.
#pragma once

#include <string>

#include "cli/common/plain_file.hpp"
#include "penstock/status.hpp"

namespace penstock::cli {

class folder_tree {
 public:
  // The folder that the user named, which is made, with those above it, if it is missing. Errors: os errors; not_a_file (a link, or no
  // folder, has its name).
  static result<folder_tree> open(const std::string& path);

  // A folder below it, for names in it; made if it is missing. path: relative, and without "..". Errors: as above.
  [[nodiscard]] result<owned_fd> enter(const std::string& path) const;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  folder_tree(std::string path, owned_fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  owned_fd fd_;
};

}  // namespace penstock::cli
