// How fast the files of one file system have been read from their disk: through the page cache, which keeps what was read, and past it.
// What tells that the one way is much slower here than the other. Thread-safe.
#pragma once

#include <cstdint>

#include "base/spin_lock.hpp"

namespace penstock::core {

class cold_speeds {
 public:
  // Of long requests only: of shorter ones how long each takes decides, and not what the disk can do.
  static constexpr std::uint64_t least_request_bytes = std::uint64_t{64} << 20;
  // After so many bytes it is known whether reading through the page cache is bound by CPU time, as on virtual machines whose memory the
  // host hands out page by page when it is first touched (1 s/GB). There a disk soon gives more past it.
  static constexpr std::uint64_t least_costed_bytes = std::uint64_t{16} << 20;
  // From so many bytes on a speed is known.
  static constexpr std::uint64_t least_kept_bytes = std::uint64_t{512} << 20;
  static constexpr std::uint64_t least_direct_bytes = std::uint64_t{32} << 20;
  // The first that are read past it tell nothing: a ring is made for them, and memory is pinned.
  static constexpr std::uint64_t warm_up_bytes = std::uint64_t{16} << 20;
  // A request of so many bytes may try, for a part of it, what reading past the page cache reaches.
  static constexpr std::uint64_t least_trying_request_bytes = std::uint64_t{512} << 20;
  static constexpr std::uint64_t tried_bytes = std::uint64_t{64} << 20;
  // After so many bytes past the page cache it is found out anew what reading through it reaches.
  static constexpr std::uint64_t direct_bytes_between = std::uint64_t{4} << 30;
  // Before these are known, no more is planned at once: what comes behind it goes the way that they speak for.
  static constexpr std::uint64_t planned_unknown_bytes = std::uint64_t{16} << 20;

  // unknown: keep, for a little. try_direct: keep, but for a part. try_direct_now: keeping is bound by the CPU, and nothing else is known.
  enum class verdict : std::uint8_t { unknown, keep, bypass, try_direct, try_direct_now };
  // threads: that keep at once.
  explicit cold_speeds(unsigned threads) noexcept : threads_(threads) {}
  // What is known speaks for this.
  [[nodiscard]] verdict advise() const noexcept;
  // A thread takes up a piece, to be read past the page cache (direct) or through it. note() follows for each.
  void begins(bool direct) noexcept;
  struct reading {
    bool direct = false;
    std::uint64_t bytes = 0;    // 0: it was not read
    std::int64_t began_ns = 0;  // by the engine's clock
    std::int64_t ended_ns = 0;
    std::int64_t cpu_ns = 0;  // of the thread that read it through the page cache
  };
  void note(const reading& piece) noexcept;
  // What advise() wanted to be tried is tried.
  void tries(std::uint64_t bytes) noexcept;

 private:
  // The time with at least one piece under way, of pieces that end in about the order of their ends. Of more than it remembers, what is
  // long ago counts for less.
  struct meter {
    std::uint64_t most_remembered_bytes;
    std::uint64_t bytes = 0;
    std::uint64_t bytes_beside = 0;  // read the other way at the same time, which count too
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
  mutable spin_lock lock_;  // guards what follows
  meter kept_{remembered_bytes};
  meter kept_of_late_{remembered_of_late_bytes};
  meter direct_{remembered_bytes};
  std::uint64_t warmed_up_bytes_ = 0;
  std::uint64_t direct_since_kept_ = 0;  // bytes
  std::uint64_t trying_bytes_ = 0;       // of what is tried, those that have not been read
  unsigned direct_under_way_ = 0;        // pieces
  std::uint64_t asked_bytes_ = 0;        // that were to be tried, ever
};

}  // namespace penstock::core
