// A tar archive of a few text files, built in memory: POSIX ustar (IEEE Std 1003.1, pax), which every tar can unpack. Contains no folders,
// links or user names. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::cli {

class tar_bytes {
 public:
  // modified: the modification time of all files, in seconds since 1970.
  explicit tar_bytes(std::int64_t modified) : modified_(modified) {}
  // name: a relative path of at most 99 bytes. content: less than 8 GiB.
  void add(std::string_view name, std::string_view content);
  // Returns the complete archive with its end marker. Do not append to the returned bytes.
  [[nodiscard]] std::string ended() const;

 private:
  std::int64_t modified_;
  std::string bytes_;
};

}  // namespace penstock::cli
