// The engine: owns the doors to kernel and devices, the staging memory, the lanes and the paths, and runs requests. Thread-safe.
// Made by make_engine; destroyed when its last file, buffer, operation and handle is gone.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/deadlines.hpp"
#include "core/gather.hpp"
#include "core/memory_map.hpp"
#include "core/mount.hpp"
#include "core/planner.hpp"
#include "core/request.hpp"
#include "core/stats.hpp"
#include "device/device.hpp"
#include "path/data_path.hpp"
#include "penstock/engine.hpp"
#include "staging/feeder.hpp"
#include "staging/lanes.hpp"
#include "staging/slab_pool.hpp"
#include "sys/fork_guard.hpp"
#include "sys/kernel.hpp"

namespace penstock::core {

// The doors an engine is given; tests hand in others.
struct seams {
  std::shared_ptr<sys::kernel> kernel;
  std::shared_ptr<device::driver> cuda;  // null: none
  std::shared_ptr<device::driver> host;
};

// Requests up to this run on the caller's own thread, without a hand-over (64 KiB over two lanes take 26 us, alone 18); in a batch, and
// where nobody waits, they travel together.
inline constexpr std::uint64_t small_request_bytes = std::uint64_t{128} << 10;

class engine_core : public std::enable_shared_from_this<engine_core> {
 public:
  static result<std::shared_ptr<engine_core>> make(const engine_options& options, seams doors);
  engine_core(const engine_core&) = delete;
  engine_core& operator=(const engine_core&) = delete;

  // --- requests. Those that take callbacks take them for good with what they return; where they throw (bad_alloc), nothing was taken.
  io_result run(file_core& file, const transfer& what, const io_options& options);
  // Whether run_async() leaves all but the queueing to a lane.
  [[nodiscard]] bool only_queues(std::uint64_t length, const io_options& options) const noexcept {
    return length <= small_request_bytes && !forced(options) && !options.after_default_stream;
  }
  pending* run_async(const std::shared_ptr<file_core>& file, const transfer& what, const io_options& options, io_callback& callback);
  pending* submit(std::span<const io_request> requests, const std::vector<std::shared_ptr<file_core>>& files, const io_options& options,
                  io_callback& callback, item_callback& each);
  status run_on_stream(const std::shared_ptr<file_core>& file, const stream_request& what, bool is_write);
  result<plan> explain(file_core& file, memory_kind memory, const transfer& what, const io_options& options);

  std::vector<pci_device> pci_devices();
  status gpu_direct_status();

  // --- parts, for requests
  [[nodiscard]] sys::kernel& kernel() const noexcept { return *doors_.kernel; }
  [[nodiscard]] staging::feeders& feeders() noexcept { return feeders_; }
  [[nodiscard]] memory_map& memory() noexcept { return memory_; }
  // Where callbacks of users run: a thread that nothing else can hold up.
  [[nodiscard]] staging::lanes& callbacks() noexcept { return callbacks_; }
  [[nodiscard]] core::deadlines& deadlines() noexcept { return deadlines_; }
  // What serves the files of a file system (of a block device, itself).
  mount& mount_of(std::uint64_t device);
  [[nodiscard]] staging::slab_pool& pool(bool emulated) noexcept { return emulated ? host_pool_ : cuda_pool_; }
  [[nodiscard]] unsigned cores() const noexcept { return cores_; }
  [[nodiscard]] bool few_cores() const noexcept { return cores_ <= 4; }
  [[nodiscard]] unsigned lane_count() const noexcept { return lane_count_; }
  [[nodiscard]] path::data_path& path(path_kind kind) noexcept { return *paths_[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] stats_book& stats() noexcept { return stats_; }
  [[nodiscard]] engine_stats snapshot() const;
  [[nodiscard]] const engine_options& options() const noexcept { return options_; }
  // How long who waits for a batch does so without sleeping: it ends in tens of microseconds, and waking costs twenty. Where cores are few,
  // the lanes need them more (128 x 4 KiB on two cores: 500 us with it, 250 without).
  [[nodiscard]] std::chrono::microseconds batch_spin() const noexcept;
  [[nodiscard]] bool forked() const noexcept { return fork_guard_.forked(); }
  void forget(const path::file_view& closing);
  static std::int64_t now_ns() noexcept;
  // The pieces of a part of a request.
  result<std::vector<planned_piece>> plan_request(file_core& file, const transfer& part, const transfer& whole, const staging::place& place,
                                                  const io_options& options, const cutting& how);
  // How much of the range a read should be planned for: to the end of the file as it is known, and on from there only where the kernel
  // has more, since what it says of a file's size may be old, or nothing. 0: the file ends there. Reads a byte.
  result<reach> readable(file_core& file, const transfer& what);
  [[nodiscard]] bool forced(const io_options& options) const noexcept { return forced_path(options) != path_kind::automatic; }
  [[nodiscard]] path_kind forced_path(const io_options& options) const noexcept {
    return options.path != path_kind::automatic ? options.path : options_.path;
  }

 private:
  engine_core(const engine_options& options, seams doors);
  ~engine_core();
  static void destroy(engine_core* core);

  status check(const transfer& what, const io_options& options) const;
  // As io_options::after_default_stream asks.
  static status settle(const staging::place& place, bool is_write, const io_options& options);
  io_result run_small(file_core& file, const transfer& what, const staging::place& place, const io_options& options);
  io_result run_small_on_device(file_core& file, const transfer& what, const staging::place& place, const io_options& options);
  // Checks a request, finds where its memory lies, and waits for the default stream where that is asked for.
  status admit(const transfer& what, const io_options& options, staging::place& place);
  pending* run_small_async(const std::shared_ptr<file_core>& file, const transfer& what, const io_options& options, io_callback& callback);
  io_result run_pieces(file_core& file, file_use use, const transfer& what, const staging::place& place, const io_options& options);
  void remark(plan& told, file_core& file, const staging::place& place, const transfer& what);
  [[nodiscard]] std::uint64_t most_piece_bytes() const noexcept { return staging::large_slab_bytes; }

  friend class stream_operation;
  friend class batch_request;

  const engine_options options_;
  const seams doors_;
  const unsigned cores_;
  const unsigned lane_count_;
  sys::fork_guard fork_guard_;
  stats_book stats_;
  staging::pinned_budget budget_;
  staging::feeders feeders_;
  staging::slab_pool cuda_pool_;
  staging::slab_pool host_pool_;
  memory_map memory_;
  std::vector<std::unique_ptr<path::data_path>> paths_;
  staging::lanes callbacks_;
  core::deadlines deadlines_;
  std::mutex mounts_lock_;  // guards mounts_
  std::vector<std::unique_ptr<mount>> mounts_;
  std::atomic<unsigned> active_{0};  // blocking device requests under way
};

// Makes a public engine over given doors: how tests get one that fails where they want.
result<engine> make_engine(const engine_options& options, seams doors);
// The real doors, as the options ask.
seams real_seams(const engine_options& options);

}  // namespace penstock::core
