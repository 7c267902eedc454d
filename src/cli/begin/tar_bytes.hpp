// A tar archive of a few text files, made in memory: POSIX ustar (IEEE Std 1003.1, pax), which every tar unpacks. No folders, no links, no
// names of users. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::cli {

class tar_bytes {
 public:
  // modified: seconds since 1970, of all files.
  explicit tar_bytes(std::int64_t modified) : modified_(modified) {}
  // name: relative, of at most 99 bytes. content: below 8 GiB.
  void add(std::string_view name, std::string_view content);
  // The whole archive. Nothing is added behind it.
  [[nodiscard]] std::string ended() const;

 private:
  std::int64_t modified_;
  std::string bytes_;
};

}  // namespace penstock::cli
