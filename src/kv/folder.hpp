// The folder of a store and the files in it: `data`, the values; `index`, where they are; `lock`, which the process that writes holds. All
// belong to this user, and nobody else can write to them. The lock begins with a magic number, as the index does: a folder that has
// neither, and is not empty, is not a store's. Blocks where the file system does. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "penstock/status.hpp"

namespace penstock::kv {

// Closes it.
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
  // create: makes it if it is missing. Follows symbolic links of this user and of root only. Errors: permission_denied (another user's link
  // or folder), not_a_file, those of open(2) and mkdir(2).
  static result<folder> open(const std::string& path, bool create);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(const char* name) const { return path_ + "/" + name; }

  // Whether a store without an index may be made here: the folder is empty, or a store was begun in it. Errors: invalid_argument names
  // files that are not a store's.
  [[nodiscard]] status check_may_hold_new_store() const;
  // For as long as the descriptor is open, or a copy of it (sys::not_inherited). Errors: would_block names the process that has it.
  [[nodiscard]] result<descriptor> lock() const;
  // One that is there. Errors: not_found, and those of open(2); permission_denied also where it is another user's.
  [[nodiscard]] result<descriptor> open_file(const char* name, bool write) const;
  // Makes it where it is missing.
  [[nodiscard]] result<descriptor> make_file(const char* name) const;
  // The number of the file that has the name; 0: none.
  [[nodiscard]] result<std::uint64_t> inode_of(const char* name) const;
  // Gives a whole file its name in place of another one. The name is on the disk when it returns.
  [[nodiscard]] status replace(const char* from, const char* to) const;
  void remove(const char* name) const noexcept;
  [[nodiscard]] bool has(const char* name) const noexcept;

 private:
  std::string path_;
  descriptor descriptor_;
};

// The number of an open file.
[[nodiscard]] result<std::uint64_t> inode_of(const descriptor& file, const std::string& path);
// Of a file, its size in bytes.
[[nodiscard]] result<std::uint64_t> size_of(const descriptor& file, const std::string& path);
[[nodiscard]] status sync_data(const descriptor& file, const std::string& path);
// The file is that long, with room on the disk for all of it where the file system can tell.
[[nodiscard]] status preallocate(const descriptor& file, std::uint64_t bytes, const std::string& path);
// Reads up to that many bytes; fewer at the end of the file only.
[[nodiscard]] result<std::size_t> read_at(const descriptor& file, std::span<std::byte> to, std::uint64_t offset, const std::string& path);
// How many bytes were written, and why not all.
struct written {
  std::size_t bytes = 0;
  status error{};
};
[[nodiscard]] written write_at(const descriptor& file, std::span<const std::byte> from, std::uint64_t offset, const std::string& path);
// What tells this start of the machine from others; empty where that is not known.
[[nodiscard]] std::string this_boot();

}  // namespace penstock::kv
