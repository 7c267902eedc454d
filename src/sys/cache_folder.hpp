// The door to a folder of files that processes of one user share as a cache: opened without following links, looked at before anything in
// it is believed, and locked by range. Locks are those of open file descriptions (F_OFD_SETLK, Linux 3.15): the kernel lets go of them when
// the last process that has the description is gone, however it ended (see not_inherited). A failed call returns the errno of that very
// call as a status that names it. Thread-safe. Only whole_lock waits, and for as long as its caller says.
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

// What is known of a file of such a folder.
struct cache_file_facts {
  std::uint64_t size = 0;
  std::uint64_t allocated = 0;  // bytes on the disk
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;  // since 1970
  std::int64_t changed_ns = 0;   // likewise; of the inode (st_ctime), which every change of the content or the size changes
  bool has_name = true;          // nobody has removed it
};

struct byte_range {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// The lock of a folder. Lets go of it itself: a child that was forked meanwhile has the description too, and closing it would leave it
// locked.
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

  // Makes the folder (mode 700) where it is missing, but not the one above it. Errors name it: invalid_argument (not an absolute path),
  // permission_denied (it belongs to another user, others may write in it, or it is a link or no folder), those of mkdir(2) and open(2).
  static result<cache_folder> open(const std::string& path);

  // Opens a file, or makes it (mode 600). Errors: not_found; permission_denied (it is no file of this user's alone); those of open(2).
  enum class opening : std::uint8_t { to_read, to_write, or_make };
  [[nodiscard]] result<owned_descriptor> open_file(const std::string& name, opening how) const;
  // Without opening it. Errors: not_found; permission_denied (it is no file).
  [[nodiscard]] result<cache_file_facts> facts_of(const std::string& name) const;
  // Takes the name away, where there is one.
  void remove(const std::string& name) const noexcept;
  // Names in it, at most most_listed.
  [[nodiscard]] result<std::vector<std::string>> list() const;
  // Held until the result is destroyed. Waits while another process has it; errors: would_block once the time is over.
  [[nodiscard]] result<folder_lock> whole_lock(std::chrono::milliseconds most) const;

  struct space {
    std::uint64_t all = 0;
    std::uint64_t free = 0;  // for this user
  };
  // Of its file system.
  [[nodiscard]] result<space> room() const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  cache_folder(std::string name, owned_descriptor folder) : name_(std::move(name)), folder_(std::move(folder)) {}

  std::string name_;
  owned_descriptor folder_;
};

[[nodiscard]] result<cache_file_facts> cache_file_facts_of(int fd);

// Of the whole file (flock): many may share it, or one has it alone. Taken at once, or not at all; until the descriptor is closed.
[[nodiscard]] bool try_share(int fd) noexcept;
[[nodiscard]] bool try_own(int fd) noexcept;

// Takes a range of the file for this description, at once or not at all. What another description has of it: none, all was free and is
// taken; else the first range that is not, and nothing is taken. Errors: those of fcntl(2).
[[nodiscard]] result<std::optional<byte_range>> try_claim(int fd, const byte_range& what) noexcept;
void let_go(int fd, const byte_range& what) noexcept;

// Of a range that was claimed: lets go of it before the file is closed, which would not do where a child was forked meanwhile.
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

// While it lives, children that are forked have /dev/null in place of a descriptor: a claim or a lock on it lives as long as anybody has
// its description, and is to end with this process. Goes before the descriptor is closed. Where there is no memory to remember it, it is
// inherited.
class not_inherited {
 public:
  explicit not_inherited(int fd) noexcept;
  not_inherited(const not_inherited&) = delete;
  not_inherited& operator=(const not_inherited&) = delete;
  ~not_inherited();

 private:
  const int fd_;
};

// All of it, or an error; short is io.
[[nodiscard]] status read_exactly(int fd, std::span<std::byte> into, std::uint64_t offset) noexcept;
[[nodiscard]] status write_exactly(int fd, std::span<const std::byte> from, std::uint64_t offset) noexcept;
// Makes it so long; what is new is a hole.
[[nodiscard]] status set_length(int fd, std::uint64_t bytes) noexcept;
// Now is the time of its last change.
void touch(int fd) noexcept;
// Has what was written of the range begun to go to the disk, and waits for that. Blocks.
void write_back(int fd, const byte_range& what) noexcept;
// All that was written, and what is needed to find it, is on the disk. Blocks.
[[nodiscard]] status sync_file(int fd) noexcept;

}  // namespace penstock::sys
