// A folder of files that all processes of one user share as a cache. Files are opened without following links, checked before their
// contents are used, and locked by range. Locks belong to open file descriptions (F_OFD_SETLK, Linux 3.15): the kernel releases them when
// the last process that has the description exits or is killed (see not_inherited). If a system call fails, its errno is returned as a
// status that names the call. Thread-safe. Only whole_lock() waits, for as long as its caller allows.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::sys {

// Facts about one file in the folder.
struct cache_file_facts {
  std::uint64_t size = 0;
  std::uint64_t allocated = 0;  // bytes on the disk
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;  // since 1970
  std::int64_t changed_ns = 0;   // since 1970; st_ctime, which changes whenever the contents or the size change
  bool has_name = true;          // false: the file has been removed
};

struct byte_range {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// A lock on a folder. The destructor unlocks it explicitly: a child forked in between shares the description, so closing alone would leave
// the folder locked.
class folder_lock {
 public:
  explicit folder_lock(owned_descriptor locked) noexcept : locked_(std::move(locked)) {}
  folder_lock(folder_lock&&) noexcept = default;
  folder_lock& operator=(folder_lock&&) = delete;
  ~folder_lock();

 private:
  owned_descriptor locked_;
};

class cache_folder {
 public:
  static constexpr std::size_t most_listed = 200'000;

  // Creates the folder (mode 700) if it does not exist, but not its parent. Errors name the folder: invalid_argument (not an absolute
  // path), permission_denied (owned by another user, writable by others, a symbolic link, or not a folder), those of mkdir(2) and open(2).
  static result<cache_folder> open(const std::string& path);

  // Opens a file; or_make creates it (mode 600) if it does not exist. Errors: not_found; permission_denied (not a regular file that only
  // this user can access); those of open(2).
  enum class opening : std::uint8_t { to_read, to_write, or_make };
  [[nodiscard]] result<owned_descriptor> open_file(const std::string& name, opening how) const;
  // Returns facts about a file without opening it. Errors: not_found; permission_denied (not a regular file).
  [[nodiscard]] result<cache_file_facts> facts_of(const std::string& name) const;
  // Removes a file if it exists.
  void remove(const std::string& name) const noexcept;
  // Returns the names of the files in the folder, at most most_listed.
  [[nodiscard]] result<std::vector<std::string>> list() const;
  // Locks the folder until the result is destroyed. Waits up to `most` while another process holds the lock; then returns would_block.
  [[nodiscard]] result<folder_lock> whole_lock(std::chrono::milliseconds most) const;

  struct space {
    std::uint64_t all = 0;
    std::uint64_t free = 0;  // available to this user
  };
  // Returns the total and free space of the folder's file system.
  [[nodiscard]] result<space> room() const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  cache_folder(std::string name, owned_descriptor folder) : name_(std::move(name)), folder_(std::move(folder)) {}

  std::string name_;
  owned_descriptor folder_;
};

[[nodiscard]] result<cache_file_facts> cache_file_facts_of(int fd);

// Lock the whole file (flock), shared or exclusive, without waiting. The lock lasts until the descriptor is closed.
[[nodiscard]] bool try_share(int fd) noexcept;
[[nodiscard]] bool try_own(int fd) noexcept;

// Locks a range of the file for this open file description, without waiting. Returns nothing if the whole range was free and is now locked.
// Otherwise locks nothing and returns the first part that another description has locked. Errors: those of fcntl(2).
[[nodiscard]] result<std::optional<byte_range>> try_claim(int fd, const byte_range& what) noexcept;
void let_go(int fd, const byte_range& what) noexcept;

// Releases a claimed range before the file is closed. Closing alone does not release it if a child was forked in between.
class claimed_range {
 public:
  claimed_range(int fd, const byte_range& what) noexcept : fd_(fd), what_(what) {}
  claimed_range(const claimed_range&) = delete;
  claimed_range& operator=(const claimed_range&) = delete;
  ~claimed_range() { let_go(fd_, what_); }

 private:
  const int fd_;
  const byte_range what_;
};

// While this object exists, the descriptor refers to /dev/null in forked children. A claim or lock is held as long as any process has the
// open file description, but must not outlive this process. Destroy this object before closing the descriptor. If there is no memory to
// register the descriptor, children inherit it.
class not_inherited {
 public:
  explicit not_inherited(int fd) noexcept;
  not_inherited(const not_inherited&) = delete;
  not_inherited& operator=(const not_inherited&) = delete;
  ~not_inherited();

 private:
  const int fd_;
};

// Transfer all bytes or fail. A short transfer is an error (EIO when reading, ENOSPC when writing).
[[nodiscard]] status read_exactly(int fd, std::span<std::byte> into, std::uint64_t offset) noexcept;
[[nodiscard]] status write_exactly(int fd, std::span<const std::byte> from, std::uint64_t offset) noexcept;
// Sets the length of the file; added bytes are a hole.
[[nodiscard]] status set_length(int fd, std::uint64_t bytes) noexcept;
// Sets the modification time to now.
void touch(int fd) noexcept;
// Writes the dirty pages in the range to the disk. Blocks until they are written.
void write_back(int fd, const byte_range& what) noexcept;
// Blocks until all written data, and the metadata needed to read it back, is on the disk.
[[nodiscard]] status sync_file(int fd) noexcept;

}  // namespace penstock::sys
