// Measures how fast one file system's files are read from disk through the page cache, which keeps the bytes, and past it, to find out
// whether one way is much slower on this machine. Thread-safe.
#pragma once

#include <cstdint>

#include "base/spin_lock.hpp"

namespace penstock::core {

class cold_speeds {
 public:
  // Only long requests count. Latency dominates the speed of shorter ones.
  static constexpr std::uint64_t least_request_bytes = std::uint64_t{64} << 20;
  // Enough bytes to show whether the CPU limits reads through the page cache, as on virtual machines whose host allocates memory page by
  // page on first touch (1 s/GB). On such a machine, reads past the page cache are faster almost at once.
  static constexpr std::uint64_t least_costed_bytes = std::uint64_t{16} << 20;
  // A speed is known after this many bytes.
  static constexpr std::uint64_t least_kept_bytes = std::uint64_t{512} << 20;
  static constexpr std::uint64_t least_direct_bytes = std::uint64_t{32} << 20;
  // The first bytes read past the page cache do not count, because their time includes creating a ring and pinning memory.
  static constexpr std::uint64_t warm_up_bytes = std::uint64_t{16} << 20;
  // A request of at least this many bytes may read a part (tried_bytes) past the page cache to measure its speed.
  static constexpr std::uint64_t least_trying_request_bytes = std::uint64_t{512} << 20;
  static constexpr std::uint64_t tried_bytes = std::uint64_t{64} << 20;
  // After this many bytes past the page cache, the speed through the page cache is measured again.
  static constexpr std::uint64_t direct_bytes_between = std::uint64_t{4} << 30;
  // While the speeds are unknown, only this much is planned at a time. The rest follows the verdict at that time.
  static constexpr std::uint64_t planned_unknown_bytes = std::uint64_t{16} << 20;

  // unknown: use the page cache, for a small amount. try_direct: use the page cache, except for a trial part. try_direct_now: the CPU
  // limits reads through the page cache, and the speed past it is unknown.
  enum class verdict : std::uint8_t { unknown, keep, bypass, try_direct, try_direct_now };
  // threads: the number of threads that read through the page cache concurrently.
  explicit cold_speeds(unsigned threads) noexcept : threads_(threads) {}
  // Returns the verdict that the measurements support.
  [[nodiscard]] verdict advise() const noexcept;
  // Called when a thread starts to read a piece, past the page cache if direct. Each call must be followed by a call to note().
  void begins(bool direct) noexcept;
  struct reading {
    bool direct = false;
    std::uint64_t bytes = 0;    // 0: the piece was not read
    std::int64_t began_ns = 0;  // on the engine's clock
    std::int64_t ended_ns = 0;
    std::int64_t cpu_ns = 0;  // CPU time of the thread, for a read through the page cache
  };
  void note(const reading& piece) noexcept;
  // Called when a request follows the advice to try this many bytes.
  void tries(std::uint64_t bytes) noexcept;

 private:
  // Measures the time during which at least one piece is in flight. Pieces are added approximately in the order in which they complete.
  // Beyond most_remembered_bytes, older bytes weigh less.
  struct meter {
    std::uint64_t most_remembered_bytes;
    std::uint64_t bytes = 0;
    std::uint64_t bytes_beside = 0;  // read the other way at the same time; these count too
    std::int64_t active_ns = 0;
    std::int64_t cpu_ns = 0;
    std::int64_t last_end_ns = 0;
    void add(const reading& piece) noexcept;
    [[nodiscard]] double speed() const noexcept {
      return static_cast<double>(bytes + bytes_beside) / static_cast<double>(active_ns > 0 ? active_ns : 1);
    }
  };

  static constexpr std::uint64_t remembered_bytes = std::uint64_t{8} << 30;
  static constexpr std::uint64_t remembered_of_late_bytes = std::uint64_t{64} << 20;

  [[nodiscard]] bool bound_by_cpu() const noexcept;

  const unsigned threads_;
  mutable spin_lock lock_;  // guards the members below
  meter kept_{remembered_bytes};
  meter kept_of_late_{remembered_of_late_bytes};
  meter direct_{remembered_bytes};
  std::uint64_t warmed_up_bytes_ = 0;
  std::uint64_t direct_since_kept_ = 0;  // bytes
  std::uint64_t trying_bytes_ = 0;       // trial bytes not read yet
  unsigned direct_under_way_ = 0;        // pieces
  std::uint64_t asked_bytes_ = 0;        // total that advise() has asked callers to try
};

}  // namespace penstock::core
