#include "path/data_path.hpp"

#include <mutex>
#include <new>

#include "base/no_memory.hpp"

namespace penstock::path {

namespace {

// Takes over the duty of whoever drains, with the first slab that waits for it; null when none does.
job* take_drain(job_queues::drain_list& drains) {
  const std::lock_guard guard(drains.lock);
  job* first = drains.head;
  if (first == nullptr) return nullptr;
  drains.head = first->next_drain;
  if (drains.head == nullptr) drains.tail = nullptr;
  ++drains.running;
  return first;
}

}  // namespace

bool job::run() {
  const bool begins = ranges.empty() && shared == nullptr && !draining;
  if (begins) {
    if (auto stop = owner->stopped(); !stop.ok()) {
      owner->finished(*this, 0, stop.with_context(to_string(path->kind())));
      return true;
    }
  }
  try {
    return path->run(*this);
  } catch (const std::bad_alloc&) {  // a path that lets this out has told the owner nothing
    owner->finished(*this, moved, no_memory());
    return true;
  }
}

void end_queued(job_queues& queues) {
  while (queues.lanes->help(queues.cpu_works)) {
  }
  while (queues.disk->help(queues.disk_works)) {
  }
  queues.disk->end_ready(&queues);
  while (queues.lanes->help_urgent(queues.urgent_works)) {
  }
  while (job* waits = take_drain(queues.drains)) (void)waits->run();
}

}  // namespace penstock::path
