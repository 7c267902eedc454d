// The stored data: the data file, the index and the catalogue, kept consistent. A put's record is written once its bytes are in the file,
// and a drop's record before the extent is reused. Thread-safe. Blocks on file system calls.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/catalogue.hpp"
#include "kv/coming.hpp"
#include "kv/folder.hpp"
#include "kv/index_log.hpp"
#include "kv/operations.hpp"
#include "penstock/engine.hpp"
#include "penstock/kv.hpp"
#include "sys/cache_folder.hpp"

namespace penstock::kv {

// A value whose bytes are in the file.
struct new_value {
  std::string_view key;
  value_facts facts;               // without the sequence
  std::uint64_t number = 0;        // of the put, in call order
  coming_value* coming = nullptr;  // if it was announced; commit() then withdraws it
  status error{};                  // the outcome of the put. On failure the extent is freed, unless only the final sync failed
};

class volume {
 public:
  static result<std::unique_ptr<volume>> open(const engine& with, const std::string& path, const store_options& options);
  [[nodiscard]] const std::string& path() const noexcept { return folder_.path(); }
  [[nodiscard]] const file& data() const noexcept { return data_; }
  [[nodiscard]] bool read_only() const noexcept { return read_only_; }
  [[nodiscard]] std::uint64_t capacity_bytes() const;

  // --- reading
  // In a read-only store, reads what the writing process has added since the last call. Otherwise does nothing.
  status follow();
  // As in catalogue. Counts hits and misses. The facts are those at this time; a null entry means that the value is absent. For a get on a
  // stream, the last put queued on that stream counts.
  struct found_value {
    catalogue::entry* entry = nullptr;
    value_facts facts{};
  };
  [[nodiscard]] found_value begin_read(std::string_view key, const stream_order& on);
  void end_read(catalogue::entry* read);
  [[nodiscard]] std::optional<value_facts> find(std::string_view key) const;
  // Like find(), but also marks the value as used.
  std::optional<value_facts> use(std::string_view key);
  // Call if a value does not match its checksum. Drops the value if this process is the writer.
  void drop_damaged(std::string_view key, std::uint64_t sequence);

  // --- writing
  // Allocates an extent for a value of this length, and drops other values if necessary. Returns nothing if there is no room even after
  // dropping every value that is not being read or written.
  result<std::optional<extent>> room_for(std::uint64_t length);
  void give_back(const extent& reserved);
  // Registers a value that a stream will write to its reserved extent, until commit() or withdraw(). Once show() is called, gets on its
  // stream find it. Throws bad_alloc.
  void announce(coming_value& value, std::string_view key, const value_facts& facts);
  void show(coming_value& value);
  void withdraw(coming_value& value) noexcept;
  // Makes the values visible. In a durable store, they are on disk when this returns.
  void commit(std::span<new_value> values);
  // results: one per key.
  void drop(std::span<const std::string_view> keys, std::span<key_result> results);
  status sync();

  void add_to(store_stats& told) const;
  // Closes the data file and releases the lock. Call when no calls are in progress.
  status close();
  // For a forked child, which cannot close everything else.
  void let_go_of_lock() {
    lock_alone_.reset();
    lock_file_ = descriptor();
  }

 private:
  volume(folder in, const store_options& options) : folder_(std::move(in)), options_(options), read_only_(options.read_only) {}
  status open_for_writing(const engine& with);
  status open_for_reading(const engine& with);
  status open_data(const engine& with, bool write);
  status make_files(std::uint64_t capacity);
  status read_index(bool write);
  status take_over();
  status write_anew();
  status reopen_index();
  struct dropped {
    std::size_t count = 0;
    status error{};  // the error if some were not dropped
  };
  dropped drop_listed(std::span<const catalogue::entry* const> victims);
  status evict(std::span<const catalogue::entry* const> victims);
  status free_kept_back();
  status mark_synced(std::uint64_t sequence);
  std::size_t write_records(std::span<new_value> values, std::vector<catalogue::prepared>& made, status& error);
  void write_anew_if_long();

  const folder folder_;
  const store_options options_;
  const bool read_only_;
  descriptor lock_file_;
  std::optional<sys::not_inherited> lock_alone_;  // for the lock file
  descriptor data_file_;
  file data_;

  std::mutex writing_;  // held while writing or following the index; taken before lock_. During I/O, held only for I/O on the index
  std::optional<index_log> log_;
  std::uint64_t longest_log_bytes_ = 0;  // after a failed rewrite, the log is not rewritten until it reaches this length
  status broken_;                        // the error after which writing is disabled

  mutable std::mutex lock_;  // guards the members below; changes of the catalogue also need writing_, except for reads and extents
  std::unique_ptr<catalogue> catalogue_;
  coming_values coming_;
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
  std::uint64_t evicted_ = 0;
  std::uint64_t damaged_ = 0;
};

}  // namespace penstock::kv
