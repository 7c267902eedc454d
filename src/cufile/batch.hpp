// A cuFile batch. Its entries run together in the engine, and each completes as an event that the caller collects. Collecting events frees
// room for new entries. Thread-safe.
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

  // Logs entries that fail to `lines`.
  batch_state(unsigned capacity, counters& stats, log& lines)
      : capacity_(capacity), inner_(std::make_shared<inner>(capacity, stats, lines)) {}
  batch_state(const batch_state&) = delete;
  batch_state& operator=(const batch_state&) = delete;
  ~batch_state();  // cancels running entries and waits until the engine no longer uses the caller's memory

  // requests[i] belongs to entries[i]. An entry whose request has no target cannot run; it produces a failed event with the error
  // refused[i]. abouts: how the statistics count each entry; if empty, they count only the direction. Returns false without running
  // anything if there is no room for all entries. Throws bad_alloc; in that case nothing runs.
  bool submit(const engine& owner, std::span<const CUfileIOParams_t> entries, std::span<const io_request> requests,
              std::span<const int> refused, const io_options& options, std::span<const counters::subject> abouts = {});
  // Waits until at least at_least events (or all outstanding ones, if fewer) have arrived or the timeout has passed, and takes up to
  // out.size() of them. With a timeout, this thread does not help the engine, so that the call returns in time.
  std::size_t collect(std::size_t at_least, std::span<CUfileIOEvents_t> out, std::optional<clock::duration> timeout);
  // Cancels running entries, waits until the engine no longer uses the caller's memory, and drops all events, as NVIDIA's library does:
  // KvikIO's example basic_io requires an empty status list after cancelling.
  void cancel() noexcept;
  // Cancels running entries and later submissions. Their events can be collected. Does not block.
  void stop() noexcept;

 private:
  // State for the engine's callbacks. It outlives the batch as long as callbacks may run.
  struct inner {
    inner(unsigned capacity, counters& into, log& told) : stats(into), lines(told) { events.reserve(capacity); }
    void add(const CUfileIOEvents_t& event) noexcept;

    static constexpr std::size_t nobody = std::numeric_limits<std::size_t>::max();

    counters& stats;
    log& lines;
    std::mutex lock;  // guards the members below
    std::condition_variable changed;
    std::vector<CUfileIOEvents_t> events;  // at most `outstanding`, so adding one never allocates
    std::size_t outstanding = 0;           // entries whose events have not been collected; at most the batch's capacity
    std::size_t enough = nobody;           // number of events that wakes a waiting thread
  };
  struct submission;

  void wait(std::unique_lock<std::mutex>& lock, std::size_t wanted, std::optional<clock::time_point> until);
  [[nodiscard]] std::shared_ptr<batch> first_running();

  const unsigned capacity_;
  const std::shared_ptr<inner> inner_;
  std::mutex running_lock_;  // guards the members below
  std::list<std::shared_ptr<batch>> running_;
  bool stopped_ = false;
};

}  // namespace penstock::cufile
