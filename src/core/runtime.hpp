// The resources shared by an engine's requests: kernel and drivers, staging memory, paths, counters, and common threads. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "base/sharded_list.hpp"
#include "core/busy_cores.hpp"
#include "core/cache/ahead_book.hpp"
#include "core/cache/cold_reads.hpp"
#include "core/cache/cold_speeds.hpp"
#include "core/cache/memory_watch.hpp"
#include "core/deadlines.hpp"
#include "core/memory_map.hpp"
#include "core/rate_limit.hpp"
#include "core/remote_counting.hpp"
#include "core/stream/stream_watch.hpp"
#include "device/device.hpp"
#include "path/kept_pages.hpp"
#include "path/pinned_pages.hpp"
#include "path/registry.hpp"
#include "penstock/facts.hpp"
#include "remote/servers.hpp"
#include "source/turnstile.hpp"
#include "staging/answer_times.hpp"
#include "staging/feeder.hpp"
#include "staging/lanes.hpp"
#include "staging/slab_pool.hpp"
#include "stats/book.hpp"
#include "sys/fork_guard.hpp"
#include "sys/kernel.hpp"
#include "sys/nvtx.hpp"

namespace penstock::core {

class admission;

// The kernel, drivers and other interfaces of an engine. Tests replace them.
struct seams {
  std::shared_ptr<sys::kernel> kernel;
  std::shared_ptr<device::driver> cuda;  // null: none
  std::shared_ptr<device::driver> host;
  std::vector<const path::declaration*> further_paths{};  // in addition to the library's own
  std::shared_ptr<stats::board> board{};                  // null: none
  source::remote::network_settings web{};                 // threads: 0 chooses by the number of cores
  source::remote::variable_lookup variable{};             // looks up environment variables for credentials; empty: no variable is set
};

// The index into board_layout::devices.
[[nodiscard]] inline std::size_t device_index(const staging::place& place) noexcept {
  return stats::device_index(true, place.on_device(), place.emulated(), place.on_device() ? place.via->session().ordinal() : 0);
}

std::int64_t now_ns() noexcept;
// The same clock, accurate to 10 ms, at a quarter of the cost.
std::int64_t about_now_ns() noexcept;

// State that a higher layer keeps per engine, and that is trimmed and counted with the engine. Thread-safe.
class beside_files {
 public:
  struct pinned {
    std::uint64_t bytes, peak_bytes;
  };
  virtual ~beside_files() = default;
  // Ends the threads and frees the memory of that layer until its next use.
  virtual void rest() = 0;
  // Does the same as engine::trim().
  virtual std::size_t trim() = 0;
  [[nodiscard]] virtual pinned pinned_now() const = 0;
  // Adds the requests in flight in that layer.
  virtual void add_under_way(std::vector<request_info>& to) = 0;
};

// Each request owns a reference to it. The engine shuts it down.
class runtime : public std::enable_shared_from_this<runtime>, public stats::board_teller {
 public:
  runtime(const runtime&) = delete;
  runtime& operator=(const runtime&) = delete;

  [[nodiscard]] const engine_options& options() const noexcept { return options_; }
  // The request's option, or else the engine's.
  [[nodiscard]] preference preference_of(const io_options& asked) const noexcept {
    return asked.prefer != preference::automatic ? asked.prefer : options_.prefer;
  }
  [[nodiscard]] unsigned links_of(const io_options& asked) const noexcept { return asked.links != 0 ? asked.links : options_.links; }
  [[nodiscard]] bool forked() const noexcept { return fork_guard_.forked(); }
  [[nodiscard]] sys::kernel& kernel() const noexcept { return *doors_.kernel; }
  [[nodiscard]] memory_map& memory() noexcept { return memory_; }
  [[nodiscard]] const memory_map& memory() const noexcept { return memory_; }
  [[nodiscard]] staging::feeders& feeders() noexcept { return feeders_; }
  [[nodiscard]] staging::slab_pool& pool(bool emulated) noexcept { return emulated ? host_pool_ : cuda_pool_; }
  // Runs the users' callbacks on a thread that only user callbacks can delay.
  [[nodiscard]] staging::lanes& callbacks() noexcept { return callbacks_; }
  // Observes the progress of device streams.
  [[nodiscard]] core::stream_watch& stream_watch() noexcept { return stream_watch_; }
  // State of this engine's pipes. Created on the first call; make must always be the same function. Lives until the engine is destroyed.
  beside_files& beside(std::unique_ptr<beside_files> (*make)(runtime& with));
  [[nodiscard]] beside_files* beside() const noexcept { return beside_.load(std::memory_order_acquire); }  // null: not created
  [[nodiscard]] core::deadlines& deadlines() noexcept { return deadlines_; }
  // The engine's limit in bytes per second; null if it has none.
  [[nodiscard]] core::rate_limit* rate_limit() const noexcept { return rate_limit_.get(); }
  // The share of the pinned budget for fills from remote sources.
  [[nodiscard]] source::turnstile::share& far_share() noexcept { return far_share_; }
  // The connections to object servers, created on the first call.
  source::remote::servers& servers();
  // The read-ahead buffers of all files.
  [[nodiscard]] ahead_book& ahead() noexcept { return *ahead_; }
  [[nodiscard]] const path::path_table& paths() const noexcept { return path_table_; }
  [[nodiscard]] path::data_path& path(path_kind kind) noexcept { return *paths_[static_cast<std::size_t>(kind)]; }
  // The part of engine::trim() that concerns slabs.
  std::size_t trim_pools();
  // Registers memory for the user, and also with the paths.
  status register_memory(void* memory, std::size_t bytes);
  void unregister_memory(void* memory);
  // Called before a file is closed. Paths discard their state for it.
  void forget(const source::source& closing);
  // Frees device memory that the engine allocated.
  void release_memory(std::string_view device, void* memory);
  // Unmaps another process's device memory.
  void release_shared(std::string_view device, void* base);
  // Makes the paths discard the state that they keep for later requests.
  void trim_paths();
  // See resident: the parts that belong to no mount. rest_servers() comes before the mounts rest, rest_shared() after.
  status rest_servers(deadline_clock::time_point until);
  status rest_shared();
  void wake_shared() noexcept;
  [[nodiscard]] stats::book& stats() noexcept { return stats_; }
  // Called with the engine's first request.
  void join_board() noexcept { stats_.begin(*this); }
  [[nodiscard]] engine_stats snapshot() const;
  // Records which files were read past the page cache.
  [[nodiscard]] core::cold_reads& cold_reads() noexcept { return cold_reads_; }
  // The available memory, at most one second out of date.
  [[nodiscard]] memory_watch& memory_left() noexcept { return memory_left_; }
  // The ranges of the page cache that users have pinned. The second function drops all pins if memory is short.
  [[nodiscard]] path::pinned_pages& pinned_pages() noexcept { return pinned_pages_; }
  void give_up_pinned_pages_where_short() noexcept;
  // Parts of the page cache that reads have registered for reuse by later reads.
  [[nodiscard]] path::kept_pages& kept_pages() noexcept { return kept_pages_; }
  // The number of bytes that users may pin in total.
  [[nodiscard]] std::uint64_t most_pinned_bytes() noexcept;
  // Returns ok if this many more bytes can be pinned without having to drop the pins at once, or if the kernel does not report its memory.
  // Error: out_of_memory.
  [[nodiscard]] status has_room_to_pin(std::uint64_t bytes);
  // The requests in flight.
  [[nodiscard]] sharded_list<admission>& admitted() noexcept { return admitted_; }
  // The number of blocking requests on device memory in flight.
  [[nodiscard]] std::atomic<unsigned>& blocking() noexcept { return blocking_; }
  // Total length of the requests in flight, except for small ones.
  [[nodiscard]] std::atomic<std::uint64_t>& asked_bytes() noexcept { return asked_bytes_; }

  [[nodiscard]] unsigned cores() const noexcept { return cores_; }
  [[nodiscard]] bool few_cores() const noexcept { return cores_ <= 4; }
  // Returns true if other processes keep the cores busy.
  [[nodiscard]] bool has_busy_cores() noexcept { return busy_cores_.now(kernel(), cores_, about_now_ns()); }
  // Returns true if there are enough lanes for more than one link at a time.
  [[nodiscard]] bool feeds_several_links() const noexcept { return lanes_.most >= 2 * lanes_.usual; }
  // The lanes per file system.
  [[nodiscard]] const staging::lanes::crew& lanes() const noexcept { return lanes_; }
  [[nodiscard]] unsigned lane_count() const noexcept { return lanes_.usual; }
  // The number of lanes for which a request is cut.
  [[nodiscard]] unsigned lane_count(const io_options& asked) const noexcept {
    return asked.lanes == 0 ? lanes_.usual : std::min(asked.lanes, lanes_.usual);
  }
  // How long a thread that waits for a batch spins before it sleeps. A batch completes in tens of microseconds, and waking up costs twenty.
  // On few cores, the lanes need the CPU more (128 x 4 KiB on two cores: 500 us with spinning, 250 us without).
  [[nodiscard]] std::chrono::microseconds batch_spin() const noexcept;
  // The NVTX range for a request of this many bytes, or for a batch of this many requests. An empty range if NVTX is off.
  [[nodiscard]] sys::nvtx_range shown_range(std::string_view what, std::uint64_t amount, std::string_view file) const noexcept {
    return options_.use_nvtx ? sys::nvtx_range(what, amount, file) : sys::nvtx_range();
  }
  // The path forced by the request, or else by the engine.
  [[nodiscard]] path_kind forced_path(const io_options& asked, bool on_device) const noexcept {
    if (asked.cufile.only_gpu_direct && on_device) return path_table_.gpu_direct();
    return asked.path != path_kind::automatic ? asked.path : options_.path;
  }
  [[nodiscard]] bool forced(const io_options& asked) const noexcept { return forced_path(asked, true) != path_kind::automatic; }

 protected:
  runtime(const engine_options& options, seams doors);
  ~runtime();  // waits for copies in flight

  // Enlarges the pools for another file system's lanes.
  void widen_pools();

 private:
  // Returns true if memory is short with this many bytes pinned.
  bool is_short_with(std::uint64_t pinned_file_bytes) noexcept;
  std::uint64_t most_kept_bytes() noexcept;

  // Shares of the pinned budget, in bytes.
  struct pinned_share {
    std::size_t for_cpu;
    std::size_t for_disk;
    bool is_cut;  // true if lanes could use more
  };
  static pinned_share share_of_each_mount(const engine_options& options, unsigned lanes, unsigned cores);

  const engine_options options_;
  const seams doors_;
  const unsigned cores_;
  const staging::lanes::crew lanes_;
  sys::fork_guard fork_guard_;
  const path::path_table path_table_;
  stats::book stats_;
  staging::pinned_budget budget_;
  remote_counting remote_counting_;
  source::turnstile::share far_share_;
  staging::feeders feeders_;
  const pinned_share share_;  // for each file system
  staging::slab_pool cuda_pool_;
  staging::slab_pool host_pool_;
  memory_map memory_;
  path::pinned_pages pinned_pages_;
  path::kept_pages kept_pages_;
  std::vector<std::unique_ptr<path::data_path>> paths_;
  staging::lanes callbacks_;
  core::stream_watch stream_watch_;
  std::mutex making_beside_;
  std::unique_ptr<beside_files> made_beside_;
  std::atomic<beside_files*> beside_{nullptr};  // made_beside_, once created
  std::mutex making_servers_;
  std::unique_ptr<source::remote::servers> servers_;  // null until the first use
  core::deadlines deadlines_;
  const owned_rate_limit rate_limit_;
  const std::unique_ptr<ahead_book, ahead_book::ending> ahead_;
  core::cold_reads cold_reads_;
  memory_watch memory_left_;
  sharded_list<admission> admitted_;
  std::atomic<unsigned> blocking_{0};
  std::atomic<std::uint64_t> asked_bytes_{0};
  busy_cores busy_cores_;
};

}  // namespace penstock::core
