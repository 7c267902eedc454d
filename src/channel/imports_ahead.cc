#include "channel/imports_ahead.hpp"

#include <utility>

#include "base/no_memory.hpp"

namespace penstock::channel {

void imports_ahead::add(device::session& from, const std::shared_ptr<const targets>& to, std::int64_t process) {
  const std::lock_guard guard(lock_);
  queue(from, to, process);
  if (!queue_.empty() && kept_ == nullptr) begin();
}

void imports_ahead::queue(device::session& from, const std::shared_ptr<const targets>& to, std::int64_t process) {
  std::size_t looked_at = 0;
  for (const auto& tensor : *to) {
    for (const auto& part : tensor.parts) {
      if (looked_at++ == most_queued || queue_.size() >= most_queued) return;
      if (!into_->knows(from, part.handle)) queue_.push_back({&from, part.handle, part.generation, process, to});
    }
  }
}

// The thread may run this at once; it then waits for the lock.
void imports_ahead::begin() {
  if (lanes_.push(list_, *this).ok()) {
    kept_ = shared_from_this();
  } else {
    queue_.clear();
  }
}

bool imports_ahead::run() {
  std::shared_ptr<imports_ahead> kept;  // released after the lock
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
      into_->map_ahead(*next.from, next.handle, next.generation, next.process, next.of);
      return {};
    });
  }
}

}  // namespace penstock::channel
