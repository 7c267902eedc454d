#include "staging/lent_slab.hpp"

#include <chrono>

#include "staging/worker.hpp"

namespace penstock::staging {

result<lent_slab> wait_for_slab(const link& via, std::size_t bytes, lanes& helped, feeders& copies, const std::function<status()>& stopped,
                                slab_user user) {
  auto& pool = via.pool();
  feeders::watch watch;
  struct timed_wait {
    slab_pool& of;
    std::int64_t began_ns = 0;
    explicit timed_wait(slab_pool& pool) noexcept : of(pool) {}
    timed_wait(const timed_wait&) = delete;
    timed_wait& operator=(const timed_wait&) = delete;
    ~timed_wait() { of.end_wait(began_ns); }
  } wait(pool);
  for (bool first = true;; first = false) {
    const auto taken = pool.try_take(bytes, via.session(), user);
    if (!taken) return taken.error();
    if (*taken) return lent_slab(pool, *taken);
    if (first) {
      helped.waited();
      wait.began_ns = pool.begin_wait(user);
    }
    if (helped.has_urgent()) {
      watch.end();  // the work item may write to a file, and a stalled file system would also block the watch
      if (helped.help_urgent()) continue;
    }
    if (copies.pump()) continue;
    if (auto stop = stopped(); !stop.ok()) return stop;
    if (!watch) watch = copies.try_watch();
    if (watch && copies.outstanding()) {
      nap();
    } else {
      pool.wait_for_return(std::chrono::microseconds(500));
    }
  }
}

}  // namespace penstock::staging
