// A file without a name, for data that does not fit in memory. It disappears when its last descriptor is closed. Not thread-safe, except
// that read() may run concurrently with append().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::sys {

class temporary_file {
 public:
  // Creates the file in a folder; in /var/tmp or /tmp if folder is empty. Errors: io (errno); the message names the folder.
  static result<temporary_file> make(const std::string& folder);

  // Appends bytes. Blocks. Leaves a tenth of the file system free. Errors: io (errno, ENOSPC); on error, nothing has been appended.
  status append(const std::byte* bytes, std::size_t length);
  // Reads bytes that were appended earlier. Blocks. Errors: io.
  status read(std::byte* target, std::size_t length, std::uint64_t offset) const;
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  temporary_file(owned_descriptor fd, std::string folder) : fd_(std::move(fd)), folder_(std::move(folder)) {}
  status check_room();

  owned_descriptor fd_;
  std::string folder_;
  std::uint64_t size_ = 0;
  std::uint64_t room_until_ = 0;  // at the last check there was room up to this size
};

}  // namespace penstock::sys
