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
  // From so many bytes on a speed is known.
  static constexpr std::uint64_t least_kept_bytes = std::uint64_t{512} << 20;
  static constexpr std::uint64_t least_direct_bytes = std::uint64_t{32} << 20;
  // A request of so many bytes may try, for a part of it, what reading past the page cache reaches.
  static constexpr std::uint64_t least_trying_request_bytes = std::uint64_t{512} << 20;
  static constexpr std::uint64_t tried_bytes = std::uint64_t{64} << 20;
  // After so many bytes past the page cache it is found out anew what reading through it reaches.
  static constexpr std::uint64_t direct_bytes_between = std::uint64_t{16} << 30;

  enum class verdict : std::uint8_t { keep, bypass, try_direct };
  // What is known speaks for this. try_direct: keep, but for a part.
  [[nodiscard]] verdict advise() const noexcept;
  // A thread takes up a piece, to be read past the page cache (direct) or through it. note() follows for each.
  void begins(bool direct) noexcept;
  // It has been read, from that time of the engine's clock to another; bytes: 0 where it was not.
  void note(bool direct, std::uint64_t bytes, std::int64_t began_ns, std::int64_t ended_ns) noexcept;
  // What advise() wanted to be tried is tried.
  void tries(std::uint64_t bytes) noexcept;

 private:
  // The time with at least one piece under way, of pieces that end in about the order of their ends.
  struct meter {
    std::uint64_t bytes = 0;
    std::uint64_t bytes_beside = 0;  // read the other way at the same time, which count too
    std::int64_t active_ns = 0;
    std::int64_t last_end_ns = 0;
    void add(std::uint64_t added, std::int64_t began_ns, std::int64_t ended_ns) noexcept;
    [[nodiscard]] double speed() const noexcept {
      return static_cast<double>(bytes + bytes_beside) / static_cast<double>(active_ns > 0 ? active_ns : 1);
    }
  };

  mutable spin_lock lock_;  // guards what follows
  meter kept_;
  meter direct_;
  std::uint64_t direct_since_kept_ = 0;  // bytes
  std::uint64_t trying_bytes_ = 0;       // of what is tried, those that have not been read
  unsigned direct_under_way_ = 0;        // pieces
  std::uint64_t asked_bytes_ = 0;        // that were to be tried, ever
};

}  // namespace penstock::core
