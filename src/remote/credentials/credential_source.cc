#include "remote/credentials/credential_source.hpp"

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::source::remote {

result<std::shared_ptr<const credentials>> credential_source::current() {
  std::unique_lock hold(mutex_);
  if (!is_renewing_) return is_due(now_()) ? renew(hold) : result<std::shared_ptr<const credentials>>(kept_);
  if (is_valid(now_())) return kept_;
  const auto before = renewals_;
  renewed_.wait(hold, [&] { return renewals_ != before; });
  if (is_valid(now_())) return kept_;
  return last_problem_.ok() ? status(errc::permission_denied, "the credentials expired while they were being renewed") : last_problem_;
}

result<std::shared_ptr<const credentials>> credential_source::renew(std::unique_lock<std::mutex>& hold) {
  is_renewing_ = true;
  hold.unlock();
  auto found = or_no_memory([&]() -> result<std::shared_ptr<const credentials>> {
    auto made = find_();
    if (!made) return made.error();
    return std::make_shared<const credentials>(*std::move(made));
  });
  const auto now = now_();
  hold.lock();
  is_renewing_ = false;
  ++renewals_;
  last_problem_ = found.error();
  if (found.ok()) {
    kept_ = *std::move(found);
    if (kept_->expires_at) next_renewal_ = std::max(*kept_->expires_at - early, now + pause);
  } else {
    next_renewal_ = now + pause;
  }
  renewed_.notify_all();
  if (last_problem_.ok() || is_valid(now)) return kept_;
  return last_problem_;
}

std::shared_ptr<const credentials> credential_source::kept() {
  const std::lock_guard hold(mutex_);
  return is_valid(now_()) ? kept_ : nullptr;
}

bool credential_source::is_due() {
  const std::lock_guard hold(mutex_);
  return !is_renewing_ && is_due(now_());
}

void credential_source::refuse(const std::shared_ptr<const credentials>& refused) {
  const std::lock_guard hold(mutex_);
  if (kept_ == refused) kept_.reset();
}

bool credential_source::is_valid(wall_time now) const { return kept_ != nullptr && (!kept_->expires_at || now < *kept_->expires_at); }

bool credential_source::is_due(wall_time now) const { return !is_valid(now) || (kept_->expires_at && now >= next_renewal_); }

}  // namespace penstock::source::remote
