#include "core/remote_counting.hpp"

#include <array>

#include "stats/counters.hpp"

namespace penstock::core {

namespace {

stats::book::span span_of(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point until) noexcept {
  const auto ns_of = [](std::chrono::steady_clock::time_point when) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
  };
  return {ns_of(from), ns_of(until)};
}

}  // namespace

void remote_counting::happened(event what) noexcept {
  // In the order of `event`.
  constexpr std::array places{stats::place_of(&usage_stats::remote_requests),      stats::place_of(&usage_stats::remote_retries),
                              stats::place_of(&usage_stats::remote_connections),   stats::place_of(&usage_stats::remote_redirects),
                              stats::place_of(&usage_stats::remote_unversioned),   stats::place_of(&usage_stats::remote_hedges),
                              stats::place_of(&usage_stats::remote_without_ranges)};
  book_.count_remote(places[static_cast<std::size_t>(what)], 1);
}

void remote_counting::received(std::uint64_t bytes, bool tls) noexcept {
  book_.count_remote(stats::place_of(&usage_stats::remote_bytes), bytes);
  if (tls) book_.count_remote(stats::place_of(&usage_stats::remote_tls_bytes), bytes);
}

void remote_counting::put_off(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point until) noexcept {
  book_.count_put_off(span_of(from, until));
}

void remote_counting::tls_bound(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point until) noexcept {
  book_.count_tls_bound(span_of(from, until));
}

void remote_counting::waited(std::int64_t began_ns, std::int64_t ended_ns) noexcept { book_.count_memory_wait({began_ns, ended_ns}); }

}  // namespace penstock::core
