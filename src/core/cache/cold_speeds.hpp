// Measures how fast the files of one file system are read from disk through the page cache, which keeps the bytes, and past it, to find out
// if one way is much slower on this machine. Thread-safe.
#pragma once

#include <cstdint>

#include "base/spin_lock.hpp"

namespace penstock::core {

class cold_speeds {
 public:
  // Only long requests count: the latency of shorter ones dominates the speed of the disk.
  static constexpr std::uint64_t least_request_bytes = std::uint64_t{64} << 20;
  // This many bytes show whether reads through the page cache are bound by CPU time, as on virtual machines whose host allocates memory
  // page by page on first touch (1 s/GB). On such a machine, reads past the page cache are soon faster.
  static constexpr std::uint64_t least_costed_bytes = std::uint64_t{16} << 20;
  // A speed counts as known after this many bytes.
  static constexpr std::uint64_t least_kept_bytes = std::uint64_t{512} << 20;
  static constexpr std::uint64_t least_direct_bytes = std::uint64_t{32} << 20;
  // The first bytes read past the page cache do not count, because they include creating a ring and pinning memory.
  static constexpr std::uint64_t warm_up_bytes = std::uint64_t{16} << 20;
  // A request of at least this many bytes may read a part (tried_bytes) past the page cache to measure its speed.
  static constexpr std::uint64_t least_trying_request_bytes = std::uint64_t{512} << 20;
  static constexpr std::uint64_t tried_bytes = std::uint64_t{64} << 20;
  // After this many bytes past the page cache, the speed through it is measured again.
  static constexpr std::uint64_t direct_bytes_between = std::uint64_t{4} << 30;
  // While the speeds are unknown, only this much is planned at once; the rest follows the verdict at that time.
  static constexpr std::uint64_t planned_unknown_bytes = std::uint64_t{16} << 20;

  // unknown: keep, for a small amount. try_direct: keep, except for a part. try_direct_now: keeping is bound by the CPU, and the speed past
  // the page cache is not known.
  enum class verdict : std::uint8_t { unknown, keep, bypass, try_direct, try_direct_now };
  // threads: how many threads read through the page cache at once.
  explicit cold_speeds(unsigned threads) noexcept : threads_(threads) {}
  // Returns the verdict that the measurements support.
  [[nodiscard]] verdict advise() const noexcept;
  // Called when a thread starts to read a piece past the page cache (direct) or through it. Each call must be followed by note().
  void begins(bool direct) noexcept;
  struct reading {
    bool direct = false;
    std::uint64_t bytes = 0;    // 0: the piece was not read
    std::int64_t began_ns = 0;  // on the engine's clock
    std::int64_t ended_ns = 0;
    std::int64_t cpu_ns = 0;  // of the thread, for a read through the page cache
  };
  void note(const reading& piece) noexcept;
  // Called when a request follows the advice to try this many bytes.
  void tries(std::uint64_t bytes) noexcept;

 private:
  // Measures the time during which at least one piece is under way. Pieces are added in about the order of their ends. Beyond
  // most_remembered_bytes, older bytes weigh less.
  struct meter {
    std::uint64_t most_remembered_bytes;
    std::uint64_t bytes = 0;
    std::uint64_t bytes_beside = 0;  // read the other way at the same time; they count too
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
  std::uint64_t trying_bytes_ = 0;       // that are being tried and have not been read yet
  unsigned direct_under_way_ = 0;        // pieces
  std::uint64_t asked_bytes_ = 0;        // total that advise() asked to try
};

}  // namespace penstock::core
