// What the stats calls report. Counted while statistics are started and the level is 1 or more; otherwise nothing is counted and no clock
// is read. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>

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

class counters {
 public:
  using clock = std::chrono::steady_clock;

  [[nodiscard]] bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  [[nodiscard]] int level() const noexcept { return level_.load(std::memory_order_relaxed); }
  void set_level(int level);
  void start();
  void stop();
  void reset();

  // The number of the GPU that owns memory, for count_transfer. -1 where there is none, and below level 3, which alone counts by GPU.
  // May call the GPU's driver.
  [[nodiscard]] int gpu_of(const engine& owner, const void* memory) const noexcept;

  // Each of these does nothing while statistics are off. None calls the GPU's driver.
  void count(counted what, bool ok) noexcept;
  // A read or write that has ended.
  void count_transfer(int gpu, bool is_write, const io_result& outcome, clock::time_point began) noexcept;
  void count_submitted(std::size_t entries, clock::time_point began) noexcept;
  void count_entry(bool is_write, const io_result& outcome, clock::time_point submitted) noexcept;

  void fill(CUfileStatsLevel1_t& out) const;
  void fill(CUfileStatsLevel2_t& out) const;
  // Of the entries of out, writes only those of GPUs that are there, as NVIDIA's library does: clients have been seen with room for no
  // more.
  void fill(CUfileStatsLevel3_t* out, const engine& owner, std::uint64_t registered_bytes) const;

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
  struct totals {
    std::array<outcomes, counted_kinds> calls{};
    both_directions transfers{};
    std::array<both_directions, 16> gpus{};
    both_directions batch{};  // entries that have ended
    std::uint64_t batch_entries = 0;
    std::uint64_t batch_submit_us = 0;
    std::array<std::uint64_t, 2> batch_last_bytes{};
  };

  void refresh() noexcept { on_.store(started_ && level_.load() > 0); }
  void fill_locked(CUfileStatsLevel1_t& out) const;
  void fill_locked(CUfileStatsLevel2_t& out) const;
  static void fill_gpu(CUfilePerGpuStats_t& out, const both_directions& counts, double seconds);
  [[nodiscard]] double seconds() const;
  [[nodiscard]] CUfileOpCounter_t calls(counted what) const;

  std::atomic<bool> on_{false};
  std::atomic<int> level_{0};
  mutable std::mutex lock_;  // guards what follows
  bool started_ = false;
  clock::time_point since_{};
  clock::duration ran_before_{};  // up to the last stop
  totals totals_;
};

}  // namespace penstock::cufile
