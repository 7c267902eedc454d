#include "staging/landing.hpp"

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::staging {

landing::landing(sys::kernel& kernel, lanes& lanes)
    : lanes_(lanes), cuda_pool_(kernel, cuda_budget_, most_bytes, 0), host_pool_(kernel, host_budget_, most_bytes, 0) {}

// A thread that returns memory looks for waiters afterwards. A thread that waits tries again after it is listed. Therefore no wake-up is
// lost.
result<landing::lease> landing::take(const link& via, waiter& again) {
  if (auto problem = lanes_.ready(); !problem.ok()) return problem;
  auto& pool = via.emulated() ? host_pool_ : cuda_pool_;
  const auto try_take = [&] { return pool.try_take(piece_bytes, via.session(), slab_user::cpu); };
  auto taken = try_take();
  if (taken && !*taken) {
    {
      const std::lock_guard guard(lock_);
      waiting_.push_back(&again);
    }
    taken = try_take();
    if (taken && !*taken) return lease();
    if (!forget(again)) {  // it is already running, and tries again there
      if (taken) give_back(pool, *taken);
      return lease();
    }
  }
  if (!taken) return taken.error();
  return or_no_memory(
      [&] { return result<lease>(lease(taken->data, [this, &pool, used = *taken](std::byte*) { give_back(pool, used); })); });
}

bool landing::forget(waiter& waiting) noexcept {
  const std::lock_guard guard(lock_);
  return std::erase(waiting_, &waiting) > 0;
}

void landing::give_back(slab_pool& pool, const slab& used) noexcept {
  pool.give_back(used);
  std::vector<waiter*> woken;
  {
    const std::lock_guard guard(lock_);
    woken.swap(waiting_);
  }
  for (auto* each : woken) (void)lanes_.push(each->list, *each);  // the lanes have started, because take() calls ready()
}

}  // namespace penstock::staging
