// What the requests of an engine stand on: the doors to kernel and devices, the staging memory, the paths, the counters, and the threads
// that serve all of them. Thread-safe.
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
#include "source/remote/servers.hpp"
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

class mount;
class admission;

// The doors an engine is given; tests hand in others.
struct seams {
  std::shared_ptr<sys::kernel> kernel;
  std::shared_ptr<device::driver> cuda;  // null: none
  std::shared_ptr<device::driver> host;
  std::vector<const path::declaration*> further_paths{};  // behind the library's own
  std::shared_ptr<stats::board> board{};                  // null: none
  source::remote::network_settings web{};                 // threads: 0: by the cores
  source::remote::variable_lookup variable{};             // of the environment, for credentials; none: nothing is set
};

// Which of board_layout::devices.
[[nodiscard]] inline std::size_t device_index(const staging::place& place) noexcept {
  return stats::device_index(true, place.on_device(), place.emulated(), place.on_device() ? place.via->session().ordinal() : 0);
}

std::int64_t now_ns() noexcept;
// The same clock to within 10 ms, at a quarter of the cost.
std::int64_t about_now_ns() noexcept;

// What a room above this one keeps for an engine: trimmed and counted with it. Thread-safe.
class beside_files {
 public:
  struct pinned {
    std::uint64_t bytes, peak_bytes;
  };
  virtual ~beside_files() = default;
  // As engine::trim().
  virtual std::size_t trim() = 0;
  [[nodiscard]] virtual pinned pinned_now() const = 0;
  // Adds what is under way there.
  virtual void add_under_way(std::vector<request_info>& to) = 0;
};

// A request keeps it; the engine is what ends it.
class runtime : public std::enable_shared_from_this<runtime>, public stats::board_teller {
 public:
  runtime(const runtime&) = delete;
  runtime& operator=(const runtime&) = delete;

  // What serves the files of a file system (of a block device, itself).
  virtual mount& mount_of(std::uint64_t device) = 0;
  // What of it those below it use.
  virtual core::cold_speeds& cold_speeds_of(mount& of) = 0;
  // Of a file system with a server; asks the kernel about it.
  struct known_answers {
    staging::answer_times* past_cache;
    staging::answer_times* by_threads;
  };
  virtual known_answers answer_times_of(mount& of) = 0;
  virtual staging::lanes& lanes_of(mount& of) = 0;
  // Those that wait for its server.
  virtual staging::waiting_lanes& waiting_lanes_of(mount& of) = 0;

  [[nodiscard]] const engine_options& options() const noexcept { return options_; }
  // What holds for a request: its own options, or else the engine's.
  [[nodiscard]] preference preference_of(const io_options& asked) const noexcept {
    return asked.prefer != preference::automatic ? asked.prefer : options_.prefer;
  }
  [[nodiscard]] unsigned links_of(const io_options& asked) const noexcept { return asked.links != 0 ? asked.links : options_.links; }
  [[nodiscard]] bool forked() const noexcept { return fork_guard_.forked(); }
  [[nodiscard]] sys::kernel& kernel() const noexcept { return *doors_.kernel; }
  [[nodiscard]] memory_map& memory() noexcept { return memory_; }
  [[nodiscard]] staging::feeders& feeders() noexcept { return feeders_; }
  [[nodiscard]] staging::slab_pool& pool(bool emulated) noexcept { return emulated ? host_pool_ : cuda_pool_; }
  // Where callbacks of users run: a thread that nothing else can hold up.
  [[nodiscard]] staging::lanes& callbacks() noexcept { return callbacks_; }
  // Who sees how far streams have come.
  [[nodiscard]] core::stream_watch& stream_watch() noexcept { return stream_watch_; }
  // What pipes keep for this engine: made for the first who asks, always with the same function, and there until the engine ends.
  beside_files& beside(std::unique_ptr<beside_files> (*make)(runtime& with));
  [[nodiscard]] beside_files* beside() const noexcept { return beside_.load(std::memory_order_acquire); }  // null: none was made
  [[nodiscard]] core::deadlines& deadlines() noexcept { return deadlines_; }
  // Of bytes a second; null: there is none.
  [[nodiscard]] core::rate_limit* rate_limit() const noexcept { return rate_limit_.get(); }
  // Of the pinned budget, for fills of far sources.
  [[nodiscard]] source::turnstile::share& far_share() noexcept { return far_share_; }
  // What carries objects on servers: made for the first.
  source::remote::servers& servers();
  // What files read ahead.
  [[nodiscard]] ahead_book& ahead() noexcept { return *ahead_; }
  [[nodiscard]] const path::path_table& paths() const noexcept { return path_table_; }
  [[nodiscard]] path::data_path& path(path_kind kind) noexcept { return *paths_[static_cast<std::size_t>(kind)]; }
  // As engine::trim(), of slabs.
  std::size_t trim_pools();
  // Memory that the user keeps registered, for paths too.
  status register_memory(void* memory, std::size_t bytes);
  void unregister_memory(void* memory);
  // The file is about to be closed: paths let go of what they keep for it.
  void forget(const source::source& closing);
  // Gives back memory of a device that the engine has allocated.
  void release_memory(std::string_view device, void* memory);
  // Paths let go of what they keep for later requests.
  void trim_paths();
  [[nodiscard]] stats::book& stats() noexcept { return stats_; }
  // The engine has its first request.
  void join_board() noexcept { stats_.begin(*this); }
  [[nodiscard]] engine_stats snapshot() const;
  // Which files were read past the page cache.
  [[nodiscard]] core::cold_reads& cold_reads() noexcept { return cold_reads_; }
  // How much memory there is, as of a second ago at most.
  [[nodiscard]] memory_watch& memory_left() noexcept { return memory_left_; }
  // What users have pinned of the page cache. Gives it up where memory is short; then nothing is pinned.
  [[nodiscard]] path::pinned_pages& pinned_pages() noexcept { return pinned_pages_; }
  void give_up_pinned_pages_where_short() noexcept;
  // What reads have registered there, and stays for those that follow.
  [[nodiscard]] path::kept_pages& kept_pages() noexcept { return kept_pages_; }
  // What users may pin in all, in bytes.
  [[nodiscard]] std::uint64_t most_pinned_bytes() noexcept;
  // Whether so many bytes more can be pinned without being given up at once; ok where the kernel does not say. Errors:
  // out_of_memory.
  [[nodiscard]] status has_room_to_pin(std::uint64_t bytes);
  // The requests under way.
  [[nodiscard]] sharded_list<admission>& admitted() noexcept { return admitted_; }
  // Blocking requests under way on memory of a device.
  [[nodiscard]] std::atomic<unsigned>& blocking() noexcept { return blocking_; }
  // Bytes that requests under way asked for, without the small ones.
  [[nodiscard]] std::atomic<std::uint64_t>& asked_bytes() noexcept { return asked_bytes_; }

  [[nodiscard]] unsigned cores() const noexcept { return cores_; }
  [[nodiscard]] bool few_cores() const noexcept { return cores_ <= 4; }
  // By other processes.
  [[nodiscard]] bool has_busy_cores() noexcept { return busy_cores_.now(kernel(), cores_, about_now_ns()); }
  // Whether there are lanes for more than one link at a time.
  [[nodiscard]] bool feeds_several_links() const noexcept { return lanes_.most >= 2 * lanes_.usual; }
  // Of a file system.
  [[nodiscard]] const staging::lanes::crew& lanes() const noexcept { return lanes_; }
  [[nodiscard]] unsigned lane_count() const noexcept { return lanes_.usual; }
  // For so many a request is cut.
  [[nodiscard]] unsigned lane_count(const io_options& asked) const noexcept {
    return asked.lanes == 0 ? lanes_.usual : std::min(asked.lanes, lanes_.usual);
  }
  // How long who waits for a batch does so without sleeping: it ends in tens of microseconds, and waking costs twenty. Where cores are few,
  // the lanes need them more (128 x 4 KiB on two cores: 500 us with it, 250 without).
  [[nodiscard]] std::chrono::microseconds batch_spin() const noexcept;
  // What tools see of a request of so many bytes, or requests; none where they are not to see any.
  [[nodiscard]] sys::nvtx_range shown_range(std::string_view what, std::uint64_t amount, std::string_view file) const noexcept {
    return options_.use_nvtx ? sys::nvtx_range(what, amount, file) : sys::nvtx_range();
  }
  // The path that the request, or else the engine, insists on.
  [[nodiscard]] path_kind forced_path(const io_options& asked, bool on_device) const noexcept {
    if (asked.only_gpu_direct && on_device) return path_table_.gpu_direct();
    return asked.path != path_kind::automatic ? asked.path : options_.path;
  }
  [[nodiscard]] bool forced(const io_options& asked) const noexcept { return forced_path(asked, true) != path_kind::automatic; }

 protected:
  runtime(const engine_options& options, seams doors);
  ~runtime();  // copies that are under way arrive

  // The pools, for the lanes of another file system.
  void widen_pools();

 private:
  // Whether memory is short where so much of it is pinned.
  bool is_short_with(std::uint64_t pinned_file_bytes) noexcept;
  std::uint64_t most_kept_bytes() noexcept;

  // Of the pinned budget, in bytes.
  struct pinned_share {
    std::size_t for_cpu;
    std::size_t for_disk;
    bool is_cut;  // lanes could use more
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
  const pinned_share share_;  // of each file system
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
  std::atomic<beside_files*> beside_{nullptr};  // that one, once it is made
  std::mutex making_servers_;
  std::unique_ptr<source::remote::servers> servers_;  // null until then
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
