// A store's folder and its files: `data` contains the values, `index` their places, and `lock` is locked by the writing process. All are
// owned by this user and not writable by others. The lock file starts with a magic number, like the index: a folder that is not empty and
// has neither is not a store. Blocks on file system calls. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "penstock/status.hpp"

namespace penstock::kv {

// Owns a file descriptor.
class descriptor {
 public:
  descriptor() noexcept = default;
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept;
  ~descriptor();
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }

 private:
  int number_ = -1;
};

class folder {
 public:
  // create: create the folder if it does not exist. Follows only symbolic links owned by this user or root. Errors: permission_denied
  // (another user's link or folder), not_a_file, those of open(2) and mkdir(2).
  static result<folder> open(const std::string& path, bool create);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(const char* name) const { return path_ + "/" + name; }

  // Returns ok if a new store may be created here: the folder is empty, or contains only a partly created store. Errors: invalid_argument
  // (lists files that do not belong to a store).
  [[nodiscard]] status check_may_hold_new_store() const;
  // Locks the store as long as the descriptor or a copy of it is open (see sys::not_inherited). Errors: would_block (the message names the
  // process that holds the lock).
  [[nodiscard]] result<descriptor> lock() const;
  // Opens an existing file. Errors: not_found, those of open(2), and permission_denied if another user owns it.
  [[nodiscard]] result<descriptor> open_file(const char* name, bool write) const;
  // Opens a file; creates it if it does not exist.
  [[nodiscard]] result<descriptor> make_file(const char* name) const;
  // Returns the inode number of the file with this name; 0: no such file.
  [[nodiscard]] result<std::uint64_t> inode_of(const char* name) const;
  // Renames a complete file over another one. The rename is on disk when the call returns.
  [[nodiscard]] status replace(const char* from, const char* to) const;
  void remove(const char* name) const noexcept;
  [[nodiscard]] bool has(const char* name) const noexcept;

 private:
  std::string path_;
  descriptor descriptor_;
};

// Returns the inode number of an open file.
[[nodiscard]] result<std::uint64_t> inode_of(const descriptor& file, const std::string& path);
// Returns the size of a file in bytes.
[[nodiscard]] result<std::uint64_t> size_of(const descriptor& file, const std::string& path);
[[nodiscard]] status sync_data(const descriptor& file, const std::string& path);
// Sets the file's length, and allocates disk space for all of it if the file system supports that.
[[nodiscard]] status preallocate(const descriptor& file, std::uint64_t bytes, const std::string& path);
// Reads up to to.size() bytes; fewer only at the end of the file.
[[nodiscard]] result<std::size_t> read_at(const descriptor& file, std::span<std::byte> to, std::uint64_t offset, const std::string& path);
// The number of bytes written, and the error if some were not.
struct written {
  std::size_t bytes = 0;
  status error{};
};
[[nodiscard]] written write_at(const descriptor& file, std::span<const std::byte> from, std::uint64_t offset, const std::string& path);
// Returns an id for the current boot of the machine; empty if unknown.
[[nodiscard]] std::string this_boot();

}  // namespace penstock::kv
