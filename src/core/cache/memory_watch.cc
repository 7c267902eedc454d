#include "core/cache/memory_watch.hpp"

#include "base/no_memory.hpp"

namespace penstock::core {

std::optional<sys::memory_state> memory_watch::at(std::int64_t now_ns) noexcept {
  auto asked = asked_ns_.load();
  if (now_ns - asked < interval_ns || !asked_ns_.compare_exchange_strong(asked, now_ns)) {
    const std::lock_guard guard(lock_);
    return seen_;
  }
  const auto state = or_no_memory([&] { return kernel_.memory_now(); });
  const std::lock_guard guard(lock_);
  seen_ = state ? std::optional(*state) : std::nullopt;
  return seen_;
}

}  // namespace penstock::core
