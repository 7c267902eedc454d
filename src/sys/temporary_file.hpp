// A file without a name, for bytes that are too many for memory; it goes with its last descriptor. Not thread-safe, but for read() beside
// append().
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
  // In that folder; in /var/tmp or /tmp if it is empty. Errors: io (errno), which name the folder.
  static result<temporary_file> make(const std::string& folder);

  // Blocks while it writes behind what is there. Leaves a tenth of the file system free. Errors: io (errno, ENOSPC); then no byte of these
  // counts.
  status append(const std::byte* bytes, std::size_t length);
  // Bytes that were appended. Blocks. Errors: io.
  status read(std::byte* target, std::size_t length, std::uint64_t offset) const;
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  temporary_file(owned_descriptor fd, std::string folder) : fd_(std::move(fd)), folder_(std::move(folder)) {}
  status check_room();

  owned_descriptor fd_;
  std::string folder_;
  std::uint64_t size_ = 0;
  std::uint64_t room_until_ = 0;  // up to that size there is room, as far as is known
};

}  // namespace penstock::sys
