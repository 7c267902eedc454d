// A key-value store in a folder: for caches whose blocks leave GPU or host memory for a disk, and come back. Values lie in one file of a
// fixed capacity, each as one contiguous extent; an index beside it says where.
//
//   auto store = penstock::kv::store::open(*engine, "/data/cache", {.capacity_bytes = 64 << 30});
//   penstock::kv::memory_piece layers[] = {{first, bytes}, {second, bytes}};
//   auto stored  = store->put({{"block-17", layers}});       // stored[0].ended == outcome::done
//   auto fetched = store->get({{"block-17", layers}});
//
// A put that finds no room drops the values that were used least recently. One process writes (a lock on the folder says so); any number of
// processes of the same user read beside it. Memory is named by plain pointers, of the host or of a device, as for penstock::file; all
// pieces of all keys of a call go to the engine as one batch.
//
// A process that is killed at any moment leaves of each key its old value, its new one or none, and never a part. After a power cut the
// values are there that were put before the last sync() (and not replaced or dropped since); others are gone.
//
// Thread-safe, except that destroying, moving or closing a store needs it to be otherwise unused. Calls that are under way at the same time
// take effect in any order, but puts of one key in the order in which they were asked for. In a forked child all answer errc::forked.
// Where memory runs out, keys fail with errc::out_of_memory; where there is not even memory for results, calls that return them throw
// std::bad_alloc. Then a put or a get has ended, or has not begun; an asynchronous one has not begun, and does not call back.
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
// Each value takes a whole number of these, in bytes.
inline constexpr std::uint64_t block_bytes = 4096;

struct store_options {
  // Of the file of values, in bytes: a whole number of blocks of it is used. Preallocated where the file system can. 0: what the folder
  // has. A folder that has less grows; one that has more is refused.
  std::uint64_t capacity_bytes = 0;
  // True: another process may be writing. Puts, drops and syncs are refused.
  bool read_only = false;
  // True: a checksum of each value that the CPU can reach is kept, and compared by gets into memory that the CPU can reach. Values put from
  // the memory of a GPU have none, and gets into it compare none.
  bool checksums = true;
  // True: each put is durable when it ends, as after sync().
  bool durable = false;
  // True: values are written past the page cache (O_DIRECT) where the file system can.
  bool direct_writes = false;
  // Puts of so many bytes at most are being written at a time; more wait their turn. One that is larger goes alone.
  std::uint64_t most_put_bytes_under_way = std::uint64_t{256} << 20;
};

// How a call ended for one key.
enum class outcome : std::uint8_t { done = 0, absent, failed };

struct key_result {
  outcome ended = outcome::failed;
  std::uint64_t bytes = 0;  // of the value, where it is done
  status error{};           // why it failed
};

// Memory of the host or of a device, from which put reads and to which get writes. Valid until the call has ended.
struct memory_piece {
  void* memory = nullptr;
  std::uint64_t length = 0;
};

// A value is its pieces one after the other. The store copies key and list.
struct item {
  std::string_view key;  // any bytes, 1 to most_key_bytes of them
  std::span<const memory_piece> pieces;
};

struct store_stats {
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // of all values
  std::uint64_t capacity_bytes = 0;
  std::uint64_t wasted_bytes = 0;  // by values that fill their last block in part
  std::uint64_t hits = 0;          // keys that gets of this store found
  std::uint64_t misses = 0;
  std::uint64_t evicted = 0;              // values dropped to make room
  std::uint64_t damaged = 0;              // values whose checksum did not fit
  std::uint64_t put_bytes_under_way = 0;  // being written
  std::uint64_t put_bytes_waiting = 0;    // for their turn
};

// Called once when a call has ended, on a thread of the engine that calls back and does nothing else. May start other calls.
using callback = std::function<void(std::span<const key_result>)>;

// A put or a get under way. Dropping it stops nothing, but memory has to stay valid until the call has ended.
class PENSTOCK_API call {
 public:
  call() noexcept = default;  // ended, with no results
  call(operation running, std::shared_ptr<const std::vector<key_result>> results) noexcept
      : running_(std::move(running)), results_(std::move(results)) {}
  // Blocks until it has ended. A result for each key, in their order.
  std::vector<key_result> wait();
  // These three as for penstock::operation. cancel() of a put stops the keys whose turn has not come. Keys that were stopped have failed
  // with errc::cancelled.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) { return running_.wait_for(timeout); }
  [[nodiscard]] bool done() const noexcept { return running_.done(); }
  void cancel() noexcept { running_.cancel(); }
  // For who keeps an operation, whose outcome is the sum of bytes and the first error, and the results, which are there once it has ended.
  [[nodiscard]] operation& running() noexcept { return running_; }
  [[nodiscard]] const std::shared_ptr<const std::vector<key_result>>& results() const noexcept { return results_; }

 private:
  operation running_;
  std::shared_ptr<const std::vector<key_result>> results_;
};

class store_core;

class PENSTOCK_API store {
 public:
  // Opens the store in a folder, which is made where it is missing (its parent must exist), mode 0700. Folder and files must belong to this
  // user, and nobody else may write to them. A new store needs an empty folder. Links of other users but root are refused. Blocks. Errors
  // name the file: invalid_argument (no capacity for a new folder, or less than it has; the folder has other files), not_found (read_only,
  // and nothing there), would_block (another process writes), permission_denied, no_space, io, unsupported (the files are of another
  // version), forked.
  static result<store> open(const engine& with, const std::string& folder, const store_options& options = {});
  store(store&&) noexcept;
  store& operator=(store&&) noexcept;
  ~store();  // closes; close() tells what goes wrong

  // Stores values; of a key that is there already in place of the old one. Blocks. The old value stays where its put fails. Errors of
  // single keys: invalid_argument (a key or a length that cannot be; more than the capacity), no_space (no room, though all that may be was
  // dropped; the disk is full), bad_memory, io, device, permission_denied (read-only), closed, forked, cancelled, out_of_memory.
  std::vector<key_result> put(std::span<const item> items) const;
  std::vector<key_result> put(std::initializer_list<item> items) const { return put(std::span(items.begin(), items.size())); }
  // The same without waiting. done may be empty.
  [[nodiscard]] call put_async(std::span<const item> items, callback done = {}) const;
  [[nodiscard]] call put_async(std::initializer_list<item> items, callback done = {}) const {
    return put_async(std::span(items.begin(), items.size()), std::move(done));
  }
  // Fetches values; the pieces of a key are as long as its value, together. Blocks. Memory of a key that is not done has any bytes. Errors
  // of single keys: invalid_argument (a key that cannot be; pieces of another length), io (also a value that does not fit its checksum: it
  // is dropped), bad_memory, device, closed, forked, cancelled, out_of_memory.
  std::vector<key_result> get(std::span<const item> items) const;
  std::vector<key_result> get(std::initializer_list<item> items) const { return get(std::span(items.begin(), items.size())); }
  [[nodiscard]] call get_async(std::span<const item> items, callback done = {}) const;
  [[nodiscard]] call get_async(std::initializer_list<item> items, callback done = {}) const {
    return get_async(std::span(items.begin(), items.size()), std::move(done));
  }

  // The length of each value, in bytes; nothing counts as used by this. Of a store that is read only: as the index says now.
  [[nodiscard]] std::vector<key_result> sizes(std::span<const std::string_view> keys) const;
  // Whether each key has a value. Errors: io, closed, forked, out_of_memory.
  [[nodiscard]] result<std::vector<bool>> exists(std::span<const std::string_view> keys) const;
  // Drops values. Blocks for the index. Errors of single keys: permission_denied (read-only), no_space, io, closed, forked, out_of_memory.
  std::vector<key_result> drop(std::span<const std::string_view> keys) const;
  // What puts and drops that have ended did is durable when it returns (fdatasync). Blocks. Errors: permission_denied (read-only), io,
  // closed, forked.
  status sync() const;
  [[nodiscard]] store_stats stats() const;
  [[nodiscard]] const std::string& folder() const noexcept;
  // Waits for calls under way, and syncs. Twice is errc::closed.
  status close();

 private:
  explicit store(std::unique_ptr<store_core> made) noexcept;
  std::unique_ptr<store_core> core_;
};

}  // namespace penstock::kv
