// The index file: an append-only log of records. A new log replaces it when most of its records are about values that are gone. The writing
// process appends; other processes read what was added, and notice when the log was replaced. Blocks for the file system. One thread at a
// time.
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

// Records to append; each is written whole or not at all.
class new_records {
 public:
  explicit new_records(std::uint64_t id) noexcept : id_(id) {}
  void add(const record& one) {
    append(bytes_, id_, one);
    ends_.push_back(bytes_.size());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t count() const noexcept { return ends_.size(); }
  // The number of records that end within that many bytes, and the end of the last of these.
  [[nodiscard]] std::size_t whole_within(std::size_t bytes) const noexcept;
  [[nodiscard]] std::size_t end_of_first(std::size_t count) const noexcept { return count == 0 ? 0 : ends_[count - 1]; }

 private:
  std::uint64_t id_;
  std::vector<std::byte> bytes_;
  std::vector<std::size_t> ends_;
};

// A header with a new random id.
[[nodiscard]] index_header new_header(std::uint64_t capacity_bytes);
// All records that a new log of the catalogue needs.
[[nodiscard]] new_records records_of(const catalogue& of, std::uint64_t id);

class index_log {
 public:
  // Opens an existing log. Errors: not_found; unsupported and io as for parse_header().
  static result<index_log> open(const folder& in, bool write);
  // Writes a new log with these records and renames it over the old one; it is on disk when the call returns. On failure the old log stays,
  // unless was_replaced() is true.
  static result<index_log> create(const folder& in, const index_header& header, const new_records& records);
  [[nodiscard]] const index_header& header() const noexcept { return header_; }
  // The offset behind the last record that was read or written, in bytes.
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }

  // Passes the records from end() on to apply(). Stops, and leaves end(), at the first record that is incomplete, wrong, or refused by
  // apply(). Returns true if nothing follows end().
  result<bool> read_new(const std::function<bool(const record&)>& apply);
  // Truncates the file at end().
  status cut();
  // Appends records at end(). Returns how many were written, and why not all of them; a partly written record is cut off.
  struct appended {
    std::size_t count = 0;
    status error{};
  };
  appended append_records(const new_records& records);
  status sync() const { return sync_data(file_, path_); }
  // True if the name now belongs to another file.
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
