// A limit in bytes per second for a file or an engine. Pieces of requests wait here until the limit admits their bytes. Requests take
// turns; background requests come after all others. No thread blocks: the deadline thread releases the pieces when they are due.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "core/deadlines.hpp"
#include "path/data_path.hpp"
#include "staging/work.hpp"
#include "stats/book.hpp"

namespace penstock::core {

// A token bucket with one token per byte. Times are from std::chrono::steady_clock. For one thread at a time.
class token_bucket {
 public:
  // The most that the bucket accumulates while idle.
  static constexpr std::chrono::nanoseconds burst = std::chrono::milliseconds(50);

  // bytes_per_second: must not be 0.
  explicit token_bucket(std::uint64_t bytes_per_second) noexcept : bytes_per_second_(static_cast<double>(bytes_per_second)) {}
  // Returns true if the bucket is not in debt. Any amount may then be taken.
  [[nodiscard]] bool is_open(std::int64_t now_ns) const noexcept { return paid_ns_ <= now_ns; }
  // The time at which is_open() becomes true.
  [[nodiscard]] std::int64_t open_ns() const noexcept { return paid_ns_; }
  // Takes this many bytes, even more than the bucket holds.
  void take(std::uint64_t bytes, std::int64_t now_ns) noexcept;
  // Returns bytes that were taken but not used.
  void give_back(std::uint64_t bytes) noexcept { paid_ns_ -= cost_ns(bytes); }

 private:
  [[nodiscard]] std::int64_t cost_ns(std::uint64_t bytes) const noexcept;

  const double bytes_per_second_;
  std::int64_t paid_ns_ = 0;  // the time at which the bytes taken so far are paid for
};

// Thread-safe. Reference-counted, because the timer may be using it when its file is closed or its engine is destroyed.
class rate_limit final : public timed {
 public:
  // by and counts must outlive the call to end().
  rate_limit(std::uint64_t bytes_per_second, deadlines& by, stats::book& counts) noexcept
      : bytes_per_second_(bytes_per_second), by_(by), counts_(counts), bucket_(bytes_per_second) {}
  [[nodiscard]] std::uint64_t bytes_per_second() const noexcept { return bytes_per_second_; }

  // Takes this many bytes if the limit admits them now; otherwise returns false.
  bool try_pass(std::uint64_t bytes) noexcept;
  void give_back(std::uint64_t bytes) noexcept;
  // Takes this many bytes even if the limit is exceeded.
  void charge(std::uint64_t bytes) noexcept;
  // Holds jobs back until the limit admits their bytes, then calls job_owner::passed() on this thread or the timer's. If no timer can be
  // started, nothing is held back.
  void hold(staging::work_list& list, const staging::work_chain& jobs, bool background) noexcept;
  // Runs one held-back job from the list on the calling thread. Used for a stopped request, whose jobs then end without a transfer. Returns
  // false if there is none.
  bool help(staging::work_list& list, bool background);
  // Called when its file is closed or its engine is destroyed. No job may be held back.
  void end() noexcept;

  // Called by the timer.
  void end_queued() override;

 private:
  ~rate_limit() override = default;
  void let_pass(std::int64_t just_held_ns) noexcept;
  [[nodiscard]] path::job* next_to_pass(std::int64_t now_ns) noexcept;
  [[nodiscard]] bool watch() noexcept;

  const std::uint64_t bytes_per_second_;
  deadlines& by_;
  stats::book& counts_;
  std::mutex lock_;  // guards the members below
  token_bucket bucket_;
  staging::work_queue normal_;
  staging::work_queue background_;
  unsigned turn_ = 0;
  bool watched_ = false;
  bool ended_ = false;
};

// Calls end() as a deleter.
struct end_of_limit {
  void operator()(rate_limit* limit) const noexcept;
};
using owned_rate_limit = std::unique_ptr<rate_limit, end_of_limit>;

}  // namespace penstock::core
