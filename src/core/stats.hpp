// Counters of one engine. Any thread counts at any time; a snapshot is not a moment in time, each counter is right by itself.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/spin_lock.hpp"
#include "path/registry.hpp"
#include "penstock/facts.hpp"

namespace penstock::core {

class stats_book {
 public:
  // Outlived by the table.
  explicit stats_book(const path::path_table& table) : table_(table), paths_(table.count()), last_fallback_(table.count()) {}
  // A piece of `bytes` bytes was carried (or failed) by a path from one time of the engine's clock to another.
  struct span {
    std::int64_t began_ns;
    std::int64_t ended_ns;
  };
  void count_piece(path_kind path, std::uint64_t bytes, span when, bool failed);
  void count_fallback(path_kind path, std::string_view why);
  // A request has ended.
  // Several that ended well, at once: the counters are shared by all cores.
  void count_requests(bool is_write, std::uint64_t requests, std::uint64_t bytes);
  void count_request(bool is_write, const io_result& outcome);
  [[nodiscard]] engine_stats snapshot() const;

 private:
  struct alignas(64) path_counters {
    std::atomic<std::uint64_t> operations{0}, bytes{0}, errors{0}, fallbacks{0}, busy_ns{0}, active_ns{0};
    std::atomic<std::int64_t> last_end_ns{0};
    std::array<std::atomic<std::uint64_t>, 24> sizes{}, latencies{};
  };
  const path::path_table& table_;
  std::vector<path_counters> paths_;  // by path_kind
  std::atomic<std::uint64_t> reads_{0}, writes_{0}, read_bytes_{0}, written_bytes_{0}, failed_{0}, cancelled_{0}, timed_out_{0};
  mutable spin_lock lock_;  // guards last_fallback_
  std::vector<std::string> last_fallback_;
};

}  // namespace penstock::core
