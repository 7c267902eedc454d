#include "channel/imports_ahead.hpp"

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::channel {

void imports_ahead::add(device::session& from, const std::shared_ptr<const targets>& to, std::int64_t process) {
  if (!has_to_map(from, *to)) return;
  const std::lock_guard guard(lock_);
  if (queue_.size() >= most_queued) return;
  queue_.push_back({&from, to, process});
  if (kept_ != nullptr) return;
  kept_ = shared_from_this();
  if (lanes_.push(list_, *this).ok()) return;
  queue_.clear();
  kept_.reset();
}

bool imports_ahead::has_to_map(device::session& from, const targets& to) const {
  return std::any_of(to.begin(), to.end(), [&](const auto& tensor) {
    return std::any_of(tensor.parts.begin(), tensor.parts.end(),
                       [&](const auto& part) { return into_->would_map_ahead(from, part.handle); });
  });
}

bool imports_ahead::run() {
  std::shared_ptr<imports_ahead> kept;  // goes when the lock is open
  for (;;) {
    posted next{};
    {
      const std::lock_guard guard(lock_);
      if (queue_.empty()) {
        kept = std::move(kept_);
        return true;
      }
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    (void)or_no_memory([&]() -> status {
      map(next);
      return {};
    });
  }
}

void imports_ahead::map(const posted& next) {
  const auto to = next.to.lock();
  if (to == nullptr) return;
  for (const auto& tensor : *to) {
    for (const auto& part : tensor.parts) into_->map_ahead(*next.from, part.handle, part.generation, next.process);
  }
}

}  // namespace penstock::channel
