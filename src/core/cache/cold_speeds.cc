#include "core/cache/cold_speeds.hpp"

#include <algorithm>
#include <mutex>

namespace penstock::core {

namespace {

// Cached bytes are worth a slower first read, so reads past the page cache must be at least this much faster.
constexpr double least_advantage = 1.25;
// A smaller advantage is enough if the CPU limits reads through the page cache, because it then has no time for other work.
constexpr double least_advantage_over_cpu = 1.1;
// CPU share of the threads that read through the page cache, above which the CPU limits them. Below it, each waits for the disk, one block
// at a time. Measured on two cores that also copy: 0.4 to 0.6 if the CPU is the limit, up to 0.25 if it is not.
constexpr double least_busy_share = 0.35;

}  // namespace

void cold_speeds::meter::add(const reading& piece) noexcept {
  bytes += piece.bytes;
  active_ns += std::max<std::int64_t>(0, piece.ended_ns - std::max(piece.began_ns, last_end_ns));
  cpu_ns += piece.cpu_ns;
  last_end_ns = std::max(last_end_ns, piece.ended_ns);
  if (bytes <= most_remembered_bytes) return;
  bytes /= 2;
  bytes_beside /= 2;
  active_ns /= 2;
  cpu_ns /= 2;
}

bool cold_speeds::bound_by_cpu() const noexcept {
  return static_cast<double>(kept_of_late_.cpu_ns) >= least_busy_share * threads_ * static_cast<double>(kept_of_late_.active_ns);
}

cold_speeds::verdict cold_speeds::advise() const noexcept {
  const std::lock_guard guard(lock_);
  if (kept_.bytes < least_costed_bytes) return verdict::unknown;
  const bool bound = bound_by_cpu();
  if (!bound && kept_.bytes < least_kept_bytes) return verdict::keep;
  if (direct_.bytes < least_direct_bytes) {
    if (asked_bytes_ >= 2 * least_direct_bytes) return verdict::keep;  // but the bytes were not read
    if (bound) return verdict::try_direct_now;
    return asked_bytes_ >= least_direct_bytes ? verdict::keep : verdict::try_direct;
  }
  const double enough = bound ? least_advantage_over_cpu * kept_of_late_.speed() : least_advantage * kept_.speed();
  return direct_.speed() > enough ? verdict::bypass : verdict::keep;
}

void cold_speeds::begins(bool direct) noexcept {
  const std::lock_guard guard(lock_);
  if (direct) ++direct_under_way_;
}

// A trial shares the disk with the rest of its request, so both count: together they show how fast the disk is if some reads bypass the
// page cache. If direct reads alone are slower, the next ones show it.
void cold_speeds::note(const reading& piece) noexcept {
  const std::lock_guard guard(lock_);
  const bool beside = !piece.direct && direct_under_way_ > 0 && trying_bytes_ > 0;
  if (piece.direct && direct_under_way_ > 0) --direct_under_way_;
  if (piece.bytes == 0) return;
  if (beside) {
    direct_.bytes_beside += piece.bytes;
    return;
  }
  if (piece.direct) trying_bytes_ -= std::min(trying_bytes_, piece.bytes);
  if (piece.direct && warmed_up_bytes_ < warm_up_bytes) {
    warmed_up_bytes_ += piece.bytes;
    direct_.last_end_ns = piece.ended_ns;
    return;
  }
  (piece.direct ? direct_ : kept_).add(piece);
  if (!piece.direct) kept_of_late_.add(piece);
  direct_since_kept_ = piece.direct ? direct_since_kept_ + piece.bytes : 0;
  if (direct_since_kept_ <= direct_bytes_between) return;
  kept_ = meter{remembered_bytes};
  kept_of_late_ = meter{remembered_of_late_bytes};
  direct_since_kept_ = 0;
}

void cold_speeds::tries(std::uint64_t bytes) noexcept {
  const std::lock_guard guard(lock_);
  asked_bytes_ += bytes;
  trying_bytes_ += bytes;
}

}  // namespace penstock::core
