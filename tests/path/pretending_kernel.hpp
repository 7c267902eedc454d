// The real kernel, in which some files have another place: what a machine with nvidia-fs shows in /proc can be shown anywhere, and what
// this machine has can be hidden. Set it up before it is shared.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "support/forwarding_kernel.hpp"

namespace penstock::testing {

class pretending_kernel final : public forwarding_kernel {
 public:
  // `path` exists and has the content of the file `place`.
  void show(const std::string& path, const std::string& place) { places_[path] = place; }
  // Nothing exists whose path begins like this, but for what show() shows.
  void hide_below(const std::string& prefix) { hidden_ = prefix; }

  // States that files are this long.
  void state_size(std::uint64_t bytes) { stated_size_ = bytes; }

  // Every file system seems to have direct I/O, of which the descriptor is a plain one: libcufile takes any range of a file, O_DIRECT does
  // not.
  void pretend_direct_io() { direct_io_ = true; }

  result<sys::file_info> describe(int fd) override {
    auto facts = inner().describe(fd);
    if (facts && direct_io_) facts->direct_offset_alignment = facts->direct_memory_alignment = 512;
    return facts;
  }
  // Descriptors seem to be O_DIRECT, and none can be opened a second time.
  void pretend_direct_only() { direct_only_ = true; }
  result<int> descriptor_flags(int fd) override {
    auto flags = inner().descriptor_flags(fd);
    if (flags && direct_only_) *flags |= O_DIRECT;
    return flags;
  }
  result<int> reopen(int fd, int flags) override {
    if (direct_only_) return status(errc::permission_denied, "reopen: pretended");
    return inner().reopen(fd, direct_io_ ? flags & ~O_DIRECT : flags);
  }
  result<std::uint64_t> file_size(int fd) override { return stated_size_ ? *stated_size_ : inner().file_size(fd); }
  bool path_exists(const std::string& path) override {
    if (places_.count(path) != 0) return inner().path_exists(places_.at(path));
    return !hidden(path) && inner().path_exists(path);
  }
  result<int> open(const std::string& path, int flags, unsigned mode) override {
    if (places_.count(path) != 0) return inner().open(places_.at(path), flags, mode);
    if (hidden(path)) return status(errc::not_found, "open " + path + ": hidden");
    return inner().open(path, flags, mode);
  }

 private:
  [[nodiscard]] bool hidden(const std::string& path) const { return !hidden_.empty() && path.compare(0, hidden_.size(), hidden_) == 0; }

  std::map<std::string, std::string> places_;
  std::string hidden_;
  std::optional<std::uint64_t> stated_size_;
  bool direct_io_ = false;
  bool direct_only_ = false;
};

}  // namespace penstock::testing
