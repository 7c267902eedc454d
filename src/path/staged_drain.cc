// Slabs whose bytes have come from the device, on their way to the page cache: one thread at a time for each request.
#include <cerrno>
#include <mutex>
#include <utility>

#include "path/staged.hpp"

namespace penstock::path {

bool refuses_direct(const status& error) {
  const int native = error.domain() == error_domain::os ? error.native() : 0;
  return native == EINVAL || native == EOPNOTSUPP || native == ECANCELED || native == EAGAIN;
}

namespace {

constexpr unsigned drainers_per_request = 1;

job* next_drain(job_queues& queues) {
  auto& drains = queues.drains;
  const std::lock_guard guard(drains.lock);
  job* next = drains.head;
  if (next == nullptr) {
    --drains.running;
    return nullptr;
  }
  drains.head = next->next_drain;
  if (drains.head == nullptr) drains.tail = nullptr;
  return next;
}

}  // namespace

void staged::queue_drain(job& item) {
  item.draining = true;
  item.next_drain = nullptr;
  auto& drains = item.queues->drains;
  {
    const std::lock_guard guard(drains.lock);
    if (drains.running >= drainers_per_request) {
      (drains.tail == nullptr ? drains.head : drains.tail->next_drain) = &item;
      drains.tail = &item;
      return;
    }
    ++drains.running;
  }
  item.queues->lanes->push_urgent(item.queues->urgent_works, item);
}

// Writes this slab to the file and then those that have come since. The owner may be gone with its last job.
void staged::drain(job& first) {
  for (job* item = &first; item != nullptr;) {
    if (!or_no_memory([&] { return write_out(*item); }).ok()) item->failure = no_memory();
    job* next = next_drain(*item->queues);
    if (item->ranges.empty() && item->bypass_cache && refuses_direct(item->failure)) {
      hand_over(*item, std::exchange(item->failure, {}));
    } else {
      finish(*item, item->moved, std::exchange(item->failure, {}));
    }
    item = next;
  }
}

// The outcome is in item.moved and item.failure; what is returned is ok.
status staged::write_out(job& item) {
  item.draining = false;
  item.moved = 0;
  if (!item.ranges.empty()) {
    write_out_ranges(item);
    return {};
  }
  item.failure = item.owner->stopped();
  if (!item.failure.ok()) return {};
  auto put = drain_slab(*with_.kernel, *item.file, item.slab.data, item.length, item.offset, route_of(item));
  item.moved = put.bytes_done;
  item.failure = std::move(put.error);
  return {};
}

}  // namespace penstock::path
