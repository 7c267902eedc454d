// Writes slabs that the device has filled to the file, one at a time per request.
#include <cerrno>
#include <utility>

#include "path/staged.hpp"

namespace penstock::path {

bool refuses_direct(const status& error) {
  const int native = error.domain() == error_domain::os ? error.native() : 0;
  return native == EINVAL || native == EOPNOTSUPP || native == ECANCELED || native == EAGAIN;
}

void staged::queue_drain(job& item) {
  auto& queues = *item.queues;
  auto& mine = progress_of(item);
  if (queues.cached_writes.add(mine)) queues.lanes->push_urgent(queues.urgent_works, mine);
}

void staged::progress::carry() {
  failure = or_no_memory([&]() -> status {
    path_of(*of).write_out(*of);
    return std::move(failure);
  });
}

void staged::progress::end() {
  auto why = std::exchange(failure, {});
  if (of->ranges.empty() && of->way == way::past_cache && refuses_direct(why)) {
    hand_over(*of, std::move(why));
  } else {
    finish(*of, of->moved, std::move(why));
  }
}

// Stores the outcome in item.moved and in progress::failure.
void staged::write_out(job& item) {
  auto& mine = progress_of(item);
  item.moved = 0;
  if (!item.ranges.empty()) {
    write_out_ranges(item);
    return;
  }
  mine.failure = item.owner->stopped();
  if (!mine.failure.ok()) return;
  const source::stop_question stopped = [&item] { return item.owner->stopped(); };
  auto how = route_of(item);
  how.stopped = &stopped;
  auto put = drain_slab(*item.file, mine.slab.data(), item.length, item.offset, how);
  item.moved = put.bytes_done;
  mine.failure = std::move(put.error);
}

}  // namespace penstock::path
