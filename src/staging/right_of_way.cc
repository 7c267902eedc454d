#include "staging/right_of_way.hpp"

#include <mutex>
#include <utility>

namespace penstock::staging {

bool right_of_way::may_take(std::int64_t now_ns) noexcept {
  std::int64_t waited_since = 0;
  {
    const std::lock_guard guard(lock_);
    const auto ended = ended_.load();  // read before begun_, so that work that completes in between is counted as in progress
    const auto begun = begun_.load();
    if (begun != seen_ || begun != ended) {
      seen_ = begun;
      busy_ns_ = now_ns;
    }
    if (now_ns - busy_ns_ < quiet.count() && now_ns - taken_ns_ < pace.count()) {
      if (waits_since_ns_ == 0) waits_since_ns_ = now_ns;
      return false;
    }
    taken_ns_ = now_ns;
    waited_since = std::exchange(waits_since_ns_, 0);
  }
  if (waited_since != 0 && told_ != nullptr) told_->let_others_go(waited_since, now_ns);
  return true;
}

}  // namespace penstock::staging
