// Copies of single files: whole under their name, or not there at all. One thread.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "penstock/penstock.hpp"

namespace penstock::cli {

struct copy_options {
  bool recursive = false;
  bool preserve = false;  // modes and times, and owners where this process may set them
  bool verify = false;    // read back and compare
  bool clone = true;      // share blocks where the file system can
  bool keep_existing = false;
  bool to_disk = false;  // not done before the disk has it
  remote_options server{};
};

struct copied_file {
  std::uint64_t bytes = 0;   // its size
  std::uint64_t copied = 0;  // of these moved; the others are holes, or shared
  bool cloned = false;
  status not_preserved{};  // the error of preserve_facts(); the copy is there nevertheless
};

// Errors: os errors; not_a_file for what is no regular file on either side; invalid_argument for one file on both sides; internal where
// what is read back differs; cancelled. What was at `to` is as it was then.
result<copied_file> copy_file(const engine& owner, const std::string& from, const std::string& to, const copy_options& how);

// The same of an object on a server, of which the size may be known; several threads may copy those that are smaller than small_object.
// folder: as pending_file_options::folder. Errors: also those of engine::open_remote; invalid_argument if its facts are to be preserved.
inline constexpr std::uint64_t small_object = std::uint64_t{8} << 20;
result<copied_file> copy_object(const engine& owner, const remote_object& from, const std::string& to, const copy_options& how,
                                int folder = -1);
// Writes an object of S3, of a file, or of an object by its URL. Errors: those of engine::begin_upload() and upload::publish(); unsupported
// (how.preserve); internal where the object, which is there then, differs from what it is of; cancelled.
result<copied_file> copy_to_object(const engine& owner, const std::string& from, const std::string& to, const copy_options& how);

// Gives a file or a folder that was copied to `path` the mode and times of `like`, and its owner if this process is root's. Sets all that
// the file system accepts. Errors: os errors, with the facts that could not be set.
status preserve_facts(int fd, const struct stat& like, const std::string& path);

}  // namespace penstock::cli
