// A folder in which the processes of one user on a node keep what came from servers: two files for each version of an object, bounded in
// bytes. What it finds there it looks at before it believes it, and no error of its own fails a read. Thread-safe.
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
#include "source/remote/cache_entry.hpp"
#include "source/remote/cache_map.hpp"
#include "source/remote/cache_threads.hpp"
#include "sys/cache_folder.hpp"
#include "sys/fork_guard.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

struct node_cache_settings {
  std::string folder;       // absolute
  std::uint64_t bytes = 0;  // that it may hold; 0: as many as leave a tenth of its file system free
};

struct node_cache_counts {
  std::uint64_t read_bytes = 0;     // from the cache
  std::uint64_t fetched_bytes = 0;  // from servers, and kept
  std::uint64_t passed_bytes = 0;   // from servers, and not kept
};

class node_cache final {
 public:
  // Errors: those of sys::cache_folder::open.
  static result<std::shared_ptr<node_cache>> open(const std::shared_ptr<sys::kernel>& kernel, const node_cache_settings& how);
  node_cache(const node_cache&) = delete;
  node_cache& operator=(const node_cache&) = delete;

  // Opens what is kept of that object in that version, or begins to keep it; then all other versions go. wanted: with what names_same()
  // compares, and shown. Blocks, but not for long. Errors, for which the object is read without a cache: unsupported (the folder is on a
  // server), would_block (another process does not let go of a lock), and those of the files.
  result<std::shared_ptr<cache_entry>> enter(cache_map_head wanted);
  // A descriptor for reading the data of one that is whole; while it is open the object is not evicted.
  result<sys::owned_descriptor> open_data(const cache_entry& of);

  // Whether so many bytes may be written; evicts what was used longest ago, and nobody has open. To be followed by wrote(). Reads the
  // folder, if not each time.
  [[nodiscard]] bool take_room(std::uint64_t bytes) noexcept;
  // They have been, or never will be.
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
  // An object in the folder, by the name of its files without their ends.
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

  // Nothing: to be tried again.
  result<std::optional<opened>> try_enter(const sys::cache_folder& in, const std::string& name, const cache_map_head& wanted);
  // Of a map whose head is locked. Nothing: it is not valid.
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
  const std::string folder_;  // opened, and looked at, for each use
  const std::string boot_;
  const sys::fork_guard fork_;
  std::atomic<std::uint64_t> read_bytes_{0};
  std::atomic<std::uint64_t> fetched_bytes_{0};
  std::atomic<std::uint64_t> passed_bytes_{0};
  std::mutex reading_;                 // of who reads the folder for room; taken before lock_, which nobody has while that one waits
  std::mutex lock_;                    // guards what follows
  std::uint64_t free_bytes_ = 0;       // that may be written before the folder is read again
  std::uint64_t being_written_ = 0;    // that were taken, and may not be in the folder yet
  clock::time_point no_room_until_{};  // the folder is not read before
  cache_threads threads_;              // ends first
};

}  // namespace penstock::source::remote
