// The file of the index: an append-only log of records, which a new one replaces when most of it is about values that are gone. The process
// that writes adds to it; others read what was added, and notice that it was replaced. Blocks where the file system does. One thread at a
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

// Records to be appended, of which each is written whole or not at all.
class new_records {
 public:
  explicit new_records(std::uint64_t id) noexcept : id_(id) {}
  void add(const record& one) {
    append(bytes_, id_, one);
    ends_.push_back(bytes_.size());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t count() const noexcept { return ends_.size(); }
  // How many end within so many bytes, and where the last of these ends.
  [[nodiscard]] std::size_t whole_within(std::size_t bytes) const noexcept;
  [[nodiscard]] std::size_t end_of_first(std::size_t count) const noexcept { return count == 0 ? 0 : ends_[count - 1]; }

 private:
  std::uint64_t id_;
  std::vector<std::byte> bytes_;
  std::vector<std::size_t> ends_;
};

// Of a log with an id of its own.
[[nodiscard]] index_header new_header(std::uint64_t capacity_bytes);
// All that a log of the catalogue needs.
[[nodiscard]] new_records records_of(const catalogue& of, std::uint64_t id);

class index_log {
 public:
  // One that is there. Errors: not_found; unsupported and io as parse_header().
  static result<index_log> open(const folder& in, bool write);
  // Makes a new one of these records, which takes the place of the one that is there; it is on the disk then. Where that fails, the old one
  // stays, unless was_replaced() says otherwise.
  static result<index_log> create(const folder& in, const index_header& header, const new_records& records);
  [[nodiscard]] const index_header& header() const noexcept { return header_; }
  // Up to where its records have been read or written, in bytes.
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }

  // Hands on the records from end() on, up to the first that is not whole, not right, or not taken by apply(); that is where end() is then.
  // True: nothing comes behind it.
  result<bool> read_new(const std::function<bool(const record&)>& apply);
  // Cuts off what lies behind end().
  status cut();
  // Writes them behind end(). How many were written, and why not all; of one that was written in part nothing stays.
  struct appended {
    std::size_t count = 0;
    status error{};
  };
  appended append_records(const new_records& records);
  status sync() const { return sync_data(file_, path_); }
  // Whether this is no longer the file that has the name.
  [[nodiscard]] result<bool> was_replaced(const folder& in) const;

 private:
  index_log(descriptor file, std::string path, const index_header& header)
      : file_(std::move(file)), path_(std::move(path)), header_(header) {}

  descriptor file_;
  std::string path_;
  index_header header_;
  std::uint64_t inode_ = 0;
  std::uint64_t end_ = header_bytes;
  std::vector<std::byte> chunk_;  // of read_new()
};

}  // namespace penstock::kv
