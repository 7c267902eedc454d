#include "staging/slab_pinner.hpp"

namespace penstock::staging {

threaded_pinner::threaded_pinner(waiting_lanes& by, disk_lanes& lanes) noexcept : by_(by), lanes_(lanes) {
  for (auto& one : each_) one.of = this;
}

void threaded_pinner::ask(slab_pool& pool, std::size_t bytes, device::session& session) {
  for (auto& one : each_) {
    if (one.in_progress.exchange(true)) continue;
    one.pool = &pool;
    one.session = &session;
    one.bytes = bytes;
    work_chain chain;
    chain.add(one);
    return by_.push_or_run(works_, chain);
  }
}

bool threaded_pinner::pinning::run() {
  pool->pin_more(bytes, *session);
  in_progress.store(false);
  of->lanes_.slab_returned();
  return true;
}

}  // namespace penstock::staging
