#include "staging/answer_times.hpp"

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

namespace penstock::staging {

namespace {

// A window spans at least two reads, and is long enough that a thread's sleep hardly changes the rate.
constexpr std::int64_t least_window_ns = 10'000'000;
// The time that threads may need to submit a read and handle its completion on a machine with few cores.
constexpr std::int64_t handling_ns = 2'000'000;
// The read depth is this factor times the number of reads in flight at the measured rate. It grows until the rate stops growing, and then
// keeps everything busy. Each further read in flight uses a slab, and pinning slabs takes time.
constexpr double spare = 1.5;
constexpr std::uint64_t least_piece_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t most_piece_bytes = std::uint64_t{4} << 20;

}  // namespace

void answer_times::set_most_read(std::uint64_t most_read_bytes) noexcept {
  piece_bytes_.store(std::bit_ceil(std::clamp(most_read_bytes, least_piece_bytes, most_piece_bytes)), std::memory_order_relaxed);
}

answer_times::reading answer_times::begins(std::int64_t now_ns) noexcept {
  const std::lock_guard guard(lock_);
  const bool alone = under_way_.fetch_add(1, std::memory_order_relaxed) == 0;
  if (alone) window_began_ns_ += now_ns - last_end_ns_;  // excludes idle time from the window
  return {now_ns, alone};
}

void answer_times::ended(const reading& of, std::int64_t now_ns, bool brought) noexcept {
  const std::lock_guard guard(lock_);
  under_way_.fetch_sub(1, std::memory_order_relaxed);
  last_end_ns_ = now_ns;
  if (!brought) return;
  if (of.alone) time(now_ns - of.began_ns);
  ++ended_in_window_;
  if (now_ns - window_began_ns_ >= std::max(2 * read_ns(), least_window_ns)) note_rate(now_ns);
}

void answer_times::answered(reading& by, std::int64_t now_ns) noexcept {
  if (!std::exchange(by.alone, false)) return;
  const std::lock_guard guard(lock_);
  time(now_ns - by.began_ns);
}

// Call with the lock held.
void answer_times::time(std::int64_t took_ns) noexcept {
  timed_ns_[timings_++ % remembered] = std::max<std::int64_t>(took_ns, 1);
  const auto known = static_cast<std::ptrdiff_t>(std::min(timings_, remembered));
  const auto quickest = *std::min_element(timed_ns_.begin(), timed_ns_.begin() + known);
  read_ns_.store(quickest, std::memory_order_relaxed);
  const bool stays = late() && quickest >= late_ns / 2;
  verdict_.store(stays || quickest >= late_ns ? verdict::late : verdict::prompt, std::memory_order_relaxed);
}

// Call with the lock held. If no read was held back, the file system might have reached a higher rate, so such a window can only raise the
// depth. The same holds for the first windows, in which threads start and slabs are allocated.
void answer_times::note_rate(std::int64_t now_ns) noexcept {
  const double rate = ended_in_window_ * 1e9 / static_cast<double>(now_ns - window_began_ns_);
  const bool was_full = was_full_.exchange(false, std::memory_order_relaxed);
  if (was_full) rates_[windows_++ % remembered] = rate;
  window_began_ns_ = now_ns;
  ended_in_window_ = 0;
  const double best = std::max(rate, *std::max_element(rates_.begin(), rates_.end()));
  const double under_way = best * static_cast<double>(read_ns() + handling_ns) / 1e9;
  const auto wanted = static_cast<unsigned>(std::clamp(spare * under_way + 1, 1.0, double{most_at_once}));
  at_once_.store(was_full && windows_ >= remembered ? wanted : std::max(wanted, at_once()), std::memory_order_relaxed);
}

}  // namespace penstock::staging
