// The index file: an append-only log of records. A new log replaces it when most of its records refer to dropped values. The writing
// process appends; other processes read what was added and detect when the log is replaced. Blocks on file system calls. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/catalogue.hpp"
#include "kv/folder.hpp"
#include "kv/record.hpp"

namespace penstock::kv {

// Records to append. Each is written completely or not at all.
class new_records {
 public:
  explicit new_records(std::uint64_t id) noexcept : id_(id) {}
  void add(const record& one) {
    append(bytes_, id_, one);
    ends_.push_back(bytes_.size());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t count() const noexcept { return ends_.size(); }
  // Returns the number of records that fit completely into this many bytes, and the end offset of the last of them.
  [[nodiscard]] std::size_t whole_within(std::size_t bytes) const noexcept;
  [[nodiscard]] std::size_t end_of_first(std::size_t count) const noexcept { return count == 0 ? 0 : ends_[count - 1]; }

 private:
  std::uint64_t id_;
  std::vector<std::byte> bytes_;
  std::vector<std::size_t> ends_;
};

// Returns a header with a new random id.
[[nodiscard]] index_header new_header(std::uint64_t capacity_bytes);
// Returns all records for a new log of the catalogue.
[[nodiscard]] new_records records_of(const catalogue& of, std::uint64_t id);

class index_log {
 public:
  // Opens an existing log. Errors: not_found; unsupported and io as for parse_header().
  static result<index_log> open(const folder& in, bool write);
  // Writes a new log with these records and renames it over the old one. The new log is on disk when the call returns. On failure the old
  // log remains, unless was_replaced() is true.
  static result<index_log> create(const folder& in, const index_header& header, const new_records& records);
  [[nodiscard]] const index_header& header() const noexcept { return header_; }
  // Returns the byte offset after the last record that was read or written.
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }

  // Passes the records starting at end() to apply(). Stops at the first record that is incomplete, invalid or rejected by apply(), and sets
  // end() to its start. Returns true if nothing follows end().
  result<bool> read_new(const std::function<bool(const record&)>& apply);
  // Truncates the file at end().
  status cut();
  // Appends records at end(). Returns how many were written, and the error if some were not. A partly written record is truncated.
  struct appended {
    std::size_t count = 0;
    status error{};
  };
  appended append_records(const new_records& records);
  status sync() const { return sync_data(file_, path_); }
  // Returns true if the name now refers to a different file.
  [[nodiscard]] result<bool> was_replaced(const folder& in) const;

 private:
  index_log(descriptor file, std::string path, const index_header& header)
      : file_(std::move(file)), path_(std::move(path)), header_(header) {}

  descriptor file_;
  std::string path_;
  index_header header_;
  std::uint64_t inode_ = 0;
  std::uint64_t end_ = header_bytes;
  std::vector<std::byte> chunk_;  // used by read_new()
};

}  // namespace penstock::kv
