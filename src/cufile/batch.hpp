// One batch of cuFile: entries are submitted, run together in the engine, and end as events that the caller collects. Reusable: as soon as
// events are collected their places are free for new entries. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "cufile/counters.hpp"
#include "cufile/cufile.h"
#include "cufile/log.hpp"
#include "penstock/engine.hpp"

namespace penstock::cufile {

class batch_state {
 public:
  using clock = std::chrono::steady_clock;

  // Entries that fail are told to lines.
  batch_state(unsigned capacity, counters& stats, log& lines)
      : capacity_(capacity), inner_(std::make_shared<inner>(capacity, stats, lines)) {}
  batch_state(const batch_state&) = delete;
  batch_state& operator=(const batch_state&) = delete;
  ~batch_state();  // cancels what runs, and waits until the engine no longer touches the caller's memory

  // requests[i] belongs to entries[i]; one without a target cannot run (why not is in its place in refused) and ends as a failed event.
  // abouts: what the statistics count each as; empty: its direction only.
  // False, and nothing runs, when there is no room for all of them. Throws bad_alloc, and nothing runs.
  bool submit(const engine& owner, std::span<const CUfileIOParams_t> entries, std::span<const io_request> requests,
              std::span<const int> refused, const io_options& options, std::span<const counters::subject> abouts = {});
  // Waits until at least at_least events are there (or all that can come), or the time is over, and takes up to out.size() of them. With a
  // time it does none of the engine's work meanwhile, so that it takes no longer.
  std::size_t collect(std::size_t at_least, std::span<CUfileIOEvents_t> out, std::optional<clock::duration> timeout);
  // Does not block.
  void cancel() noexcept;
  // As cancel(), also for what is submitted from here on.
  void stop() noexcept;

 private:
  // What the engine's callbacks touch; outlives the batch for as long as they may come.
  struct inner {
    inner(unsigned capacity, counters& into, log& told) : stats(into), lines(told) { events.reserve(capacity); }
    void add(const CUfileIOEvents_t& event) noexcept;

    static constexpr std::size_t nobody = std::numeric_limits<std::size_t>::max();

    counters& stats;
    log& lines;
    std::mutex lock;  // guards what follows
    std::condition_variable changed;
    std::vector<CUfileIOEvents_t> events;  // no more than outstanding, so that there is always room
    std::size_t outstanding = 0;           // entries whose event was not collected yet; up to the batch's capacity
    std::size_t enough = nobody;           // events that let one of the waiting threads go on
  };
  struct submission;

  void wait(std::unique_lock<std::mutex>& lock, std::size_t wanted, std::optional<clock::time_point> until);
  [[nodiscard]] std::shared_ptr<batch> first_running();

  const unsigned capacity_;
  const std::shared_ptr<inner> inner_;
  std::mutex running_lock_;  // guards what follows
  std::list<std::shared_ptr<batch>> running_;
  bool stopped_ = false;
};

}  // namespace penstock::cufile
