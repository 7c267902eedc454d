// The values for the stats calls. Counts while statistics are started and the level is at least 1; otherwise counts nothing and reads no
// clock. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "cufile/cufile.h"
#include "penstock/engine.hpp"

namespace penstock::cufile {

enum class counted : std::uint8_t {
  handle_register,
  handle_deregister,
  buffer_register,
  buffer_deregister,
  batch_setup,
  batch_submit,
  batch_cancel,
  batch_destroy,
};
inline constexpr std::size_t counted_kinds = 8;

// The statistics structs as in cufile.h, or as in 1.19 and later, where level 1 ends with vector_stats.
enum class stats_layout : std::uint8_t { of_1_15, of_1_19 };

struct vector_stats {
  CUfileOpCounter_t readv_ops;
  CUfileOpCounter_t writev_ops;
  std::uint64_t readv_bytes;
  std::uint64_t writev_bytes;
  std::uint64_t readv_bw_bytes_per_sec;
  std::uint64_t writev_bw_bytes_per_sec;
  std::uint64_t readv_lat_avg_us;
  std::uint64_t writev_lat_avg_us;
  std::uint64_t readv_ops_per_sec;
  std::uint64_t writev_ops_per_sec;
  std::uint64_t readv_lat_sum_us;
  std::uint64_t writev_lat_sum_us;
};
static_assert(sizeof(CUfileStatsLevel1_t) == 512 && sizeof(vector_stats) == 112);

// Returns 1 for "cuda:1", or -1 for anything else.
int gpu_number(std::string_view device) noexcept;

// Returns true if aligned to 4 KiB blocks.
inline bool is_aligned(const void* memory, std::uint64_t length, std::int64_t file_offset) noexcept {
  constexpr std::uint64_t block = 4096;
  return (reinterpret_cast<std::uintptr_t>(memory) | length | static_cast<std::uint64_t>(file_offset)) % block == 0;
}

// How GPU-direct bytes were moved: through nvidia-fs, or through the kernel's P2PDMA.
enum class direct_way : std::uint8_t { nvidia_fs, p2pdma };

class counters {
 public:
  using clock = std::chrono::steady_clock;
  static constexpr int no_gpu = -1;
  static constexpr std::size_t most_gpus = 16;  // the limit of the structs

  // A read or write.
  struct subject {
    int gpu = no_gpu;  // the GPU that owns the memory
    bool is_write = false;
    bool aligned = true;  // to 4 KiB blocks
  };

  [[nodiscard]] bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool counts_by_gpu() const noexcept { return on() && level() >= 3; }
  [[nodiscard]] int level() const noexcept { return level_.load(std::memory_order_relaxed); }
  void set_level(int level);
  void start();
  void stop();
  void reset();

  // Returns the number of the GPU that owns the memory, for count_transfer. Returns -1 if no GPU does, or if the level is below 3, because
  // only level 3 counts per GPU. May call the GPU driver.
  [[nodiscard]] int gpu_of(const engine& owner, const void* memory) const noexcept;

  // Sets how later GPU-direct transfers are counted.
  void set_direct_way(direct_way way) noexcept { direct_way_.store(way, std::memory_order_relaxed); }

  // These do nothing while statistics are off. They do not call the GPU driver.
  void count(counted what, bool ok) noexcept;
  // Counts GPU memory that was registered or deregistered.
  void count_buffer(int gpu, counted what, bool ok) noexcept;
  // Counts a completed read or write.
  void count_transfer(const subject& of, const io_result& outcome, clock::time_point began) noexcept;
  void count_submitted(std::size_t entries, clock::time_point began) noexcept;
  void count_entry(const subject& of, const io_result& outcome, clock::time_point submitted) noexcept;

  // Call in addition to count_transfer for a vector call.
  void count_vector(bool is_write, const io_result& outcome, clock::time_point began) noexcept;

  // Returns the struct for a level, 1 to 3, as bytes. Level 3 ends after the last existing GPU's entry, as in NVIDIA's library: some
  // clients allocate no more. registered_bytes: per GPU.
  [[nodiscard]] std::vector<std::byte> describe(int level, stats_layout layout, const engine& owner,
                                                const std::array<std::uint64_t, most_gpus>& registered_bytes) const;

 private:
  struct outcomes {
    std::uint64_t ok = 0;
    std::uint64_t err = 0;
    void add(bool good) noexcept { ++(good ? ok : err); }
    [[nodiscard]] std::uint64_t all() const noexcept { return ok + err; }
  };
  struct direction {
    outcomes operations;
    std::uint64_t bytes = 0;
    std::uint64_t us = 0;
    std::array<std::uint64_t, 32> by_size{};
    void add(const io_result& outcome, std::uint64_t took_us) noexcept;
  };
  using both_directions = std::array<direction, 2>;  // read, write
  // Additional counts for one direction and GPU.
  struct ways {
    std::uint64_t posix = 0;
    std::uint64_t nvidia_fs = 0;
    std::uint64_t p2pdma = 0;
    std::uint64_t unaligned = 0;
    std::uint64_t active_us = 0;     // time with at least one transfer in flight
    clock::time_point latest_end{};  // of these transfers
    void add(const io_result& outcome, direct_way way) noexcept;
  };
  struct of_gpu {
    both_directions transfers{};
    std::array<ways, 2> by_way{};
    outcomes registered;
    std::uint64_t deregistered = 0;
  };
  struct totals {
    std::array<outcomes, counted_kinds> calls{};
    both_directions transfers{};
    both_directions vectors{};  // also counted as transfers
    std::array<of_gpu, most_gpus> gpus{};
    both_directions batch{};               // completed entries
    std::array<outcomes, 3> batch_ways{};  // neither, nvidia-fs, P2PDMA
    std::uint64_t batch_entries = 0;
    std::uint64_t batch_submit_us = 0;
    std::array<std::uint64_t, 2> batch_last_bytes{};
  };

  void refresh() noexcept { on_.store(started_ && level_.load() > 0); }
  void fill_locked(CUfileStatsLevel1_t& out) const;
  void fill_locked(CUfileStatsLevel2_t& out) const;
  [[nodiscard]] vector_stats vectors_locked() const;
  void add_to_gpu_locked(const subject& of, const io_result& outcome, clock::time_point began, std::uint64_t took_us) noexcept;
  static void fill_gpu(CUfilePerGpuStats_t& out, const of_gpu& counts, double seconds);
  [[nodiscard]] double seconds() const;
  [[nodiscard]] CUfileOpCounter_t calls(counted what) const;

  std::atomic<bool> on_{false};
  std::atomic<int> level_{0};
  std::atomic<direct_way> direct_way_{direct_way::nvidia_fs};
  mutable std::mutex lock_;  // guards the members below
  bool started_ = false;
  clock::time_point since_{};
  clock::duration ran_before_{};  // time counted until the last stop
  totals totals_;
};

}  // namespace penstock::cufile
