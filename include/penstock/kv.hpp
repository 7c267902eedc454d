// A key-value store in a folder, for caches whose blocks are moved between GPU or host memory and a disk. The values are in one file of
// fixed capacity, each in one contiguous extent; an index file records their places.
//
//   auto store = penstock::kv::store::open(*engine, "/data/cache", {.capacity_bytes = 64 << 30});
//   penstock::kv::memory_piece layers[] = {{first, bytes}, {second, bytes}};
//   auto stored  = store->put({{"block-17", layers}});       // stored[0].ended == outcome::done
//   auto fetched = store->get({{"block-17", layers}});
//
// If there is no space for a put, the store drops the least recently used values. One process writes (it locks the folder); any number of
// processes of the same user may read at the same time. Memory is identified by plain pointers, host or device, as for penstock::file; all
// pieces of all keys in a call are submitted to the engine as one batch.
//
// If a process is killed at any moment, each key has its old value, its new value or none, never a partial value. After a power failure,
// the store contains the values put before the last sync() that have not been replaced or dropped since; others are lost.
//
// Thread-safe, but a store must not be in use while it is destroyed, moved or closed. Concurrent calls take effect in any order, except
// that puts of the same key take effect in call order. In a forked child all calls return errc::forked. If memory runs out, keys fail with
// errc::out_of_memory; if there is not even memory for the results, calls that return results throw std::bad_alloc. A put or get has then
// either completed or not started; an asynchronous one has not started and does not call back.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/engine.hpp"
#include "penstock/status.hpp"

namespace penstock::kv {

inline constexpr std::size_t most_key_bytes = 512;
// Values occupy whole blocks of this many bytes.
inline constexpr std::uint64_t block_bytes = 4096;

struct store_options {
  // Size of the value file in bytes; the store uses whole blocks of it. Preallocated if the file system supports that. 0: the existing
  // store's capacity. A smaller existing store grows; a larger one is rejected.
  std::uint64_t capacity_bytes = 0;
  // True: another process may write. Puts, drops and syncs fail.
  bool read_only = false;
  // True: the store keeps a checksum of each value that the CPU can access, and gets into memory that the CPU can access verify it. Values
  // put from GPU memory have no checksum, and gets into GPU memory do not verify it.
  bool checksums = true;
  // True: each put is durable when it completes, as after sync().
  bool durable = false;
  // True: values bypass the page cache (O_DIRECT) if the file system supports that.
  bool direct_writes = false;
  // The maximum put bytes written at the same time; other puts wait. A larger put is written alone.
  std::uint64_t most_put_bytes_under_way = std::uint64_t{256} << 20;
};

// The result of a call for one key.
enum class outcome : std::uint8_t { done = 0, absent, failed };

struct key_result {
  outcome ended = outcome::failed;
  std::uint64_t bytes = 0;  // the value's length, if the key is done
  status error{};           // why the key failed
};

// Host or device memory; put reads from it, get writes to it. Must stay valid until the call has completed.
struct memory_piece {
  void* memory = nullptr;
  std::uint64_t length = 0;
};

// The value is the concatenation of its pieces. The store copies the key and the list.
struct item {
  std::string_view key;  // 1 to most_key_bytes arbitrary bytes
  std::span<const memory_piece> pieces;
};

struct store_stats {
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // of all values
  std::uint64_t capacity_bytes = 0;
  std::uint64_t wasted_bytes = 0;  // unused bytes in the last blocks of values
  std::uint64_t hits = 0;          // keys that this store's gets found
  std::uint64_t misses = 0;
  std::uint64_t evicted = 0;              // values dropped to make room
  std::uint64_t damaged = 0;              // values whose checksum is wrong
  std::uint64_t put_bytes_under_way = 0;  // being written
  std::uint64_t put_bytes_waiting = 0;    // waiting to be written
};

// Called once when a call has completed, on the engine's callback thread. May start other calls.
using callback = std::function<void(std::span<const key_result>)>;

// A put or get in flight. Destroying the object does not stop it, and the memory must stay valid until it has completed.
class PENSTOCK_API call {
 public:
  call() noexcept = default;  // completed, with no results
  call(operation running, std::shared_ptr<const std::vector<key_result>> results) noexcept
      : running_(std::move(running)), results_(std::move(results)) {}
  // Blocks until the call has completed. Returns one result per key, in order.
  std::vector<key_result> wait();
  // As for penstock::operation. For a put, cancel() stops the keys that are still waiting; they fail with errc::cancelled.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) { return running_.wait_for(timeout); }
  [[nodiscard]] bool done() const noexcept { return running_.done(); }
  void cancel() noexcept { running_.cancel(); }
  // For code that stores operations: the operation returns the total bytes and the first error; the results are available once it has
  // completed.
  [[nodiscard]] operation& running() noexcept { return running_; }
  [[nodiscard]] const std::shared_ptr<const std::vector<key_result>>& results() const noexcept { return results_; }

 private:
  operation running_;
  std::shared_ptr<const std::vector<key_result>> results_;
};

class store_core;

class PENSTOCK_API store {
 public:
  // Opens the store in a folder, which is created with mode 0700 if it does not exist (its parent must exist). The folder and files must be
  // owned by this user and must not be writable by others. A new store needs an empty folder. Symbolic links that are not owned by this
  // user or root are rejected. Blocks. Errors (the message includes the file name): invalid_argument (no capacity for a new store, or less
  // than the existing one's; the folder has other files), not_found (read_only, and no store there), would_block (another process writes),
  // permission_denied, no_space, io, unsupported (files of a different version), forked.
  static result<store> open(const engine& with, const std::string& folder, const store_options& options = {});
  store(store&&) noexcept;
  store& operator=(store&&) noexcept;
  ~store();  // closes; call close() to see errors

  // Stores values, replacing old ones. Blocks. If a put fails, the old value is kept. Errors for single keys: invalid_argument (an invalid
  // key or length; a value larger than the capacity), no_space (no room even after dropping everything that may be dropped; the disk is
  // full), bad_memory, io, device, permission_denied (read-only), closed, forked, cancelled, out_of_memory.
  std::vector<key_result> put(std::span<const item> items) const;
  std::vector<key_result> put(std::initializer_list<item> items) const { return put(std::span(items.begin(), items.size())); }
  // Like put(), but without waiting. done may be empty.
  [[nodiscard]] call put_async(std::span<const item> items, callback done = {}) const;
  [[nodiscard]] call put_async(std::initializer_list<item> items, callback done = {}) const {
    return put_async(std::span(items.begin(), items.size()), std::move(done));
  }
  // Fetches values; the lengths of a key's pieces must add up to its value's length. Blocks. If a key is not done, the contents of its
  // memory are undefined. Errors for single keys: invalid_argument (an invalid key; pieces of a different total length), io (including a
  // value whose checksum is wrong, which is dropped), bad_memory, device, closed, forked, cancelled, out_of_memory.
  std::vector<key_result> get(std::span<const item> items) const;
  std::vector<key_result> get(std::initializer_list<item> items) const { return get(std::span(items.begin(), items.size())); }
  [[nodiscard]] call get_async(std::span<const item> items, callback done = {}) const;
  [[nodiscard]] call get_async(std::initializer_list<item> items, callback done = {}) const {
    return get_async(std::span(items.begin(), items.size()), std::move(done));
  }

  // Queue a put or get on a stream of the device that owns all of the pieces (null: its default stream). They do not wait for the stream.
  // The pieces are read or written after the work queued earlier on the stream and before the work queued later, as for stream_request.
  // The memory must stay valid until the call has completed; work queued later on the stream may use it. If a get does not find a key, or
  // fails, the key's memory has undefined contents, which later work on the stream reads: the stream does not fail.
  // A get finds the values that exist when it is called, and those of puts queued earlier on the same stream. Neither a later put nor
  // eviction changes what it reads. Puts of the same key take effect in the order of the calls, even on different streams. When a put has
  // completed, all other calls find its value, which has no checksum. Gets verify checksums only in memory of the host device. A put that
  // needs room drops values before it returns, and may wait for the index to do so. If a call moves no value, its results are available at
  // once. Further errors for single keys: unsupported (host memory), no_space (also if calls in progress use the rest of the store).
  // Destroying or closing the store waits for the streams.
  [[nodiscard]] call put_on_stream(void* stream, std::span<const item> items, callback done = {}) const;
  [[nodiscard]] call put_on_stream(void* stream, std::initializer_list<item> items, callback done = {}) const {
    return put_on_stream(stream, std::span(items.begin(), items.size()), std::move(done));
  }
  [[nodiscard]] call get_on_stream(void* stream, std::span<const item> items, callback done = {}) const;
  [[nodiscard]] call get_on_stream(void* stream, std::initializer_list<item> items, callback done = {}) const {
    return get_on_stream(stream, std::span(items.begin(), items.size()), std::move(done));
  }

  // Returns the length of each value in bytes. Marks the values as used, the first key most recently. In a read-only store: as currently
  // recorded in the index.
  [[nodiscard]] std::vector<key_result> sizes(std::span<const std::string_view> keys) const;
  // Returns for each key whether it has a value. Errors: io, closed, forked, out_of_memory.
  [[nodiscard]] result<std::vector<bool>> exists(std::span<const std::string_view> keys) const;
  // Drops values. Blocks on the index. Errors for single keys: permission_denied (read-only), no_space, io, closed, forked, out_of_memory.
  std::vector<key_result> drop(std::span<const std::string_view> keys) const;
  // Makes all completed puts and drops durable (fdatasync). Blocks. Errors: permission_denied (read-only), io, closed, forked.
  status sync() const;
  [[nodiscard]] store_stats stats() const;
  [[nodiscard]] const std::string& folder() const noexcept;
  // Waits for calls in progress, then syncs. A second call returns errc::closed.
  status close();

 private:
  explicit store(std::shared_ptr<store_core> made) noexcept;
  std::shared_ptr<store_core> core_;
};

}  // namespace penstock::kv
