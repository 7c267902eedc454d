#include "core/cold_speeds.hpp"

#include <algorithm>
#include <mutex>

namespace penstock::core {

namespace {

// Keeping is worth a slower first read: so much faster has reading past the page cache to be.
constexpr double least_advantage = 1.25;
// What was read long ago counts for less.
constexpr std::uint64_t most_remembered_bytes = std::uint64_t{8} << 30;

}  // namespace

void cold_speeds::meter::add(std::uint64_t added, std::int64_t began_ns, std::int64_t ended_ns) noexcept {
  bytes += added;
  active_ns += std::max<std::int64_t>(0, ended_ns - std::max(began_ns, last_end_ns));
  last_end_ns = std::max(last_end_ns, ended_ns);
  if (bytes <= most_remembered_bytes) return;
  bytes /= 2;
  bytes_beside /= 2;
  active_ns /= 2;
}

cold_speeds::verdict cold_speeds::advise() const noexcept {
  const std::lock_guard guard(lock_);
  if (kept_.bytes < least_kept_bytes) return verdict::keep;
  if (direct_.bytes < least_direct_bytes) return asked_bytes_ >= least_direct_bytes ? verdict::keep : verdict::try_direct;
  return direct_.speed() > least_advantage * kept_.speed() ? verdict::bypass : verdict::keep;
}

void cold_speeds::begins(bool direct) noexcept {
  const std::lock_guard guard(lock_);
  if (direct) ++direct_under_way_;
}

// What is tried shares the disk with what its request goes on to keep. So both count for it: the two together are what the disk gives where
// not all comes through the page cache. Where direct reads alone give less, the next of them tell.
void cold_speeds::note(bool direct, std::uint64_t bytes, std::int64_t began_ns, std::int64_t ended_ns) noexcept {
  const std::lock_guard guard(lock_);
  const bool beside = !direct && direct_under_way_ > 0 && trying_bytes_ > 0;
  if (direct && direct_under_way_ > 0) --direct_under_way_;
  if (bytes == 0) return;
  if (beside) {
    direct_.bytes_beside += bytes;
    return;
  }
  (direct ? direct_ : kept_).add(bytes, began_ns, ended_ns);
  if (direct) trying_bytes_ -= std::min(trying_bytes_, bytes);
  direct_since_kept_ = direct ? direct_since_kept_ + bytes : 0;
  if (direct_since_kept_ <= direct_bytes_between) return;
  kept_ = {};
  direct_since_kept_ = 0;
}

void cold_speeds::tries(std::uint64_t bytes) noexcept {
  const std::lock_guard guard(lock_);
  asked_bytes_ += bytes;
  trying_bytes_ += bytes;
}

}  // namespace penstock::core
