// Copies single files. A copy appears under its name only once it is complete.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>

#include "cli/common/plain_file.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

struct copy_options {
  bool recursive = false;
  bool preserve = false;  // keep modes and times, and owners if this process may set them
  bool verify = false;    // read the copy back and compare
  bool clone = true;      // share blocks if the file system supports it
  bool keep_existing = false;
  bool to_disk = false;  // return only once the data is on disk
  remote_options server{};
};

struct copied_file {
  std::uint64_t bytes = 0;   // size of the file
  std::uint64_t copied = 0;  // bytes actually moved; the rest are holes or shared blocks
  bool cloned = false;
  bool may_clone = true;                   // false: no files in these two folders can share blocks
  std::pair<dev_t, ino_t> identity{0, 0};  // of a local copy
  status not_preserved{};                  // the error of preserve_facts(); the copy exists nevertheless
};

// Copies a file. Leaves `to` unchanged on failure. Several threads may copy files smaller than small_file at once. Such a file is kept in
// memory as a whole: the engine's threads would cost more than they gain. Errors: os errors; not_a_file if either side is not a regular
// file; invalid_argument if both are the same file; internal if the data read back differs; cancelled.
inline constexpr std::uint64_t small_file = std::uint64_t{4} << 20;
struct opened_source {
  owned_fd fd;
  struct stat facts {};
};
// Opens the file to copy. folder: a descriptor of its folder, in which a link is not followed; -1: follows links. Errors: as above.
result<opened_source> open_source(const std::string& from, int folder = -1);
// target_folder: as pending_file_options::folder.
result<copied_file> copy_file(const engine& owner, const opened_source& source, const std::string& from, const std::string& to,
                              const copy_options& how, int target_folder = -1);
result<copied_file> copy_file(const engine& owner, const std::string& from, const std::string& to, const copy_options& how);

// The same for an object on a server. from: may contain the size. Several threads may copy objects smaller than small_object at once.
// folder: as pending_file_options::folder. Errors: also those of engine::open_remote; invalid_argument with how.preserve.
inline constexpr std::uint64_t small_object = std::uint64_t{8} << 20;
result<copied_file> copy_object(const engine& owner, const remote_object& from, const std::string& to, const copy_options& how,
                                int folder = -1);
// Writes an S3 object from a file or another object. from: a path or URL, and may contain the size. Several threads may copy sources
// smaller than small_object at once. Errors: those of engine::begin_upload() and upload::publish(); unsupported (how.preserve); internal if
// the object, which exists by then, differs from its source; cancelled.
result<copied_file> copy_to_object(const engine& owner, const remote_object& from, const std::string& to, const copy_options& how);

// Sets the mode and times of a file or folder copied to `path` to those of `like`, and its owner if this process runs as root. Sets as much
// as the file system accepts. Errors: os errors, whose message lists what could not be set.
status preserve_facts(int fd, const struct stat& like, const std::string& path);

}  // namespace penstock::cli
