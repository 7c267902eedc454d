// A limit of bytes a second, of a file or of an engine: pieces of requests wait here until their bytes may flow, the requests in turn,
// those in the background behind the others. No thread waits with them: the one of deadlines lets them go on when it is time.
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

// A token for each byte. At the times that it is told of, by std::chrono::steady_clock. For one thread at a time.
class token_bucket {
 public:
  // So much it gathers while nobody asks.
  static constexpr std::chrono::nanoseconds burst = std::chrono::milliseconds(50);

  // bytes_per_second: not 0.
  explicit token_bucket(std::uint64_t bytes_per_second) noexcept : bytes_per_second_(static_cast<double>(bytes_per_second)) {}
  // Whether it is not in debt: then anything may be taken.
  [[nodiscard]] bool is_open(std::int64_t now_ns) const noexcept { return paid_ns_ <= now_ns; }
  // From then on.
  [[nodiscard]] std::int64_t open_ns() const noexcept { return paid_ns_; }
  // Takes so many, be they more than there are.
  void take(std::uint64_t bytes, std::int64_t now_ns) noexcept;
  // Which were taken for nothing.
  void give_back(std::uint64_t bytes) noexcept { paid_ns_ -= cost_ns(bytes); }

 private:
  [[nodiscard]] std::int64_t cost_ns(std::uint64_t bytes) const noexcept;

  const double bytes_per_second_;
  std::int64_t paid_ns_ = 0;  // until then its bytes a second are spent
};

// Thread-safe. Counted by reference, since the timer may look at it when its file or engine ends.
class rate_limit final : public timed {
 public:
  // Both outlive the last call of end().
  rate_limit(std::uint64_t bytes_per_second, deadlines& by, stats::book& counts) noexcept
      : bytes_per_second_(bytes_per_second), by_(by), counts_(counts), bucket_(bytes_per_second) {}
  [[nodiscard]] std::uint64_t bytes_per_second() const noexcept { return bytes_per_second_; }

  // True where so many bytes may flow now; they count as having done so.
  bool try_pass(std::uint64_t bytes) noexcept;
  void give_back(std::uint64_t bytes) noexcept;
  // They flow, whether they may or not.
  void charge(std::uint64_t bytes) noexcept;
  // Holds jobs back until their bytes may flow: then job_owner::passed() is told, on this thread or the timer's. Where no timer can be had
  // nothing is held back.
  void hold(staging::work_list& list, const staging::work_chain& jobs, bool background) noexcept;
  // Runs a job of the list that is held back on the calling thread: of a request that was stopped, so that it only ends. False: there was
  // none.
  bool help(staging::work_list& list, bool background);
  // Its file or engine ends, and nothing is held back.
  void end() noexcept;

  // The timer's.
  void end_queued() override;

 private:
  ~rate_limit() override = default;
  void let_pass(std::int64_t just_held_ns) noexcept;
  [[nodiscard]] path::job* next_to_pass(std::int64_t now_ns) noexcept;
  [[nodiscard]] bool watch() noexcept;

  const std::uint64_t bytes_per_second_;
  deadlines& by_;
  stats::book& counts_;
  std::mutex lock_;  // guards what follows
  token_bucket bucket_;
  staging::work_queue normal_;
  staging::work_queue background_;
  unsigned turn_ = 0;
  bool watched_ = false;
  bool ended_ = false;
};

// Lets go of one, as its file or engine ends.
struct end_of_limit {
  void operator()(rate_limit* limit) const noexcept;
};
using owned_rate_limit = std::unique_ptr<rate_limit, end_of_limit>;

}  // namespace penstock::core
