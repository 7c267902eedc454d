// A folder in which all processes of one user on a node cache objects from servers, with two files per object version and a size limit. All
// data read from it is validated, and its own errors never fail a read. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"
#include "remote/cache/cache_entry.hpp"
#include "remote/cache/cache_map.hpp"
#include "remote/cache/cache_threads.hpp"
#include "sys/cache_folder.hpp"
#include "sys/fork_guard.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

struct node_cache_settings {
  std::string folder;       // absolute
  std::uint64_t bytes = 0;  // size limit; 0: leave a tenth of its file system free
};

struct node_cache_counts {
  std::uint64_t read_bytes = 0;     // read from the cache
  std::uint64_t fetched_bytes = 0;  // read from servers and cached
  std::uint64_t passed_bytes = 0;   // read from servers and not cached
};

class node_cache final {
 public:
  // Errors: those of sys::cache_folder::open.
  static result<std::shared_ptr<node_cache>> open(const std::shared_ptr<sys::kernel>& kernel, const node_cache_settings& how);
  node_cache(const node_cache&) = delete;
  node_cache& operator=(const node_cache&) = delete;

  // Opens the cached version of an object, or starts to cache it, and removes all other versions. wanted: the fields that names_same()
  // compares, and `shown`. Blocks briefly. After an error the caller reads the object without a cache. Errors: unsupported (the folder is
  // on a server), would_block (another process holds a lock), and those of file operations.
  result<std::shared_ptr<cache_entry>> enter(cache_map_head wanted);
  // Returns a descriptor for reading a complete object's data. While it is open, the object is not evicted.
  result<sys::owned_descriptor> open_data(const cache_entry& of);

  // Returns true if that many bytes may be written. Evicts the least recently used objects that no process has open. Must be followed by
  // wrote(). Sometimes reads the folder.
  [[nodiscard]] bool take_room(std::uint64_t bytes) noexcept;
  // Reports that the bytes reserved by take_room() were written, or never will be.
  void wrote(std::uint64_t bytes) noexcept;

  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }
  [[nodiscard]] cache_threads& threads() noexcept { return threads_; }
  [[nodiscard]] bool forked() const noexcept { return fork_.forked(); }
  void count_read(std::uint64_t bytes) noexcept { read_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void count_fetched(std::uint64_t bytes) noexcept { fetched_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void count_passed(std::uint64_t bytes) noexcept { passed_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  [[nodiscard]] node_cache_counts counts() const noexcept { return {read_bytes_.load(), fetched_bytes_.load(), passed_bytes_.load()}; }

 private:
  using clock = std::chrono::steady_clock;
  // An object in the folder. name: the name of its files, without suffix.
  struct kept {
    std::string name;
    std::uint64_t bytes = 0;  // on the disk
    std::int64_t used_ns = 0;
  };
  struct opened {
    sys::owned_descriptor map;
    sys::owned_descriptor data;
    cache_map_head head;
  };
  node_cache(std::shared_ptr<sys::kernel> kernel, const node_cache_settings& how, std::string folder);

  // Returns nullopt if the caller must try again.
  result<std::optional<opened>> try_enter(const sys::cache_folder& in, const std::string& name, const cache_map_head& wanted);
  // Opens an object whose map head is locked. Returns nullopt if the map is invalid.
  result<std::optional<opened>> look_at(const sys::cache_folder& in, const std::string& name, const cache_map_head& wanted,
                                        sys::owned_descriptor& map);
  result<std::optional<opened>> begin(const sys::cache_folder& in, const std::string& name, const cache_map_head& wanted,
                                      sys::owned_descriptor& map);
  static void remove(const sys::cache_folder& in, const std::string& name) noexcept;
  static void remove_other_versions(const sys::cache_folder& in, const std::string& name);
  static result<std::vector<kept>> all_kept(const sys::cache_folder& in);
  [[nodiscard]] static bool evict(const sys::cache_folder& in, const kept& gone);
  [[nodiscard]] result<std::uint64_t> make_room(std::uint64_t bytes, std::uint64_t unlisted);
  [[nodiscard]] std::optional<bool> take_known_room(std::uint64_t bytes) noexcept;
  [[nodiscard]] bool take_free(std::uint64_t bytes) noexcept;

  const std::shared_ptr<sys::kernel> kernel_;
  const std::uint64_t most_bytes_;
  const std::string folder_;  // opened and checked on each use
  const std::string boot_;
  const sys::fork_guard fork_;
  std::atomic<std::uint64_t> read_bytes_{0};
  std::atomic<std::uint64_t> fetched_bytes_{0};
  std::atomic<std::uint64_t> passed_bytes_{0};
  std::mutex reading_;                 // held while the folder is read to make room; taken before lock_, which is not held during that time
  std::mutex lock_;                    // guards the members below
  std::uint64_t free_bytes_ = 0;       // bytes that may be written before the folder is read again
  std::uint64_t being_written_ = 0;    // bytes that are reserved and may not be in the folder yet
  clock::time_point no_room_until_{};  // the folder is not read before this time
  cache_threads threads_;              // destroyed first
};

}  // namespace penstock::source::remote
