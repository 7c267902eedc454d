#include "path/data_path.hpp"

#include "base/no_memory.hpp"

namespace penstock::path {

bool job::run() {
  if (ranges.empty() && wave == 1) {
    if (auto stop = owner->stopped(); !stop.ok()) {
      owner->finished(*this, 0, stop.with_context(path->name()));
      return true;
    }
  }
  owner->begins(*this);
  return or_without_memory([this] { return path->run(*this); },
                           [this] {  // the path has not called the owner yet
                             owner->finished(*this, moved, no_memory());
                             return true;
                           });
}

void end_queued(job_queues& queues) {
  while (queues.lanes->help(queues.cpu_works)) {
  }
  while (queues.keeping != nullptr && queues.keeping->help(queues.keeping_works)) {
  }
  while (queues.waiting != nullptr && queues.waiting->help(queues.waiting_works)) {
  }
  while (queues.disk->help(queues.disk_works)) {
  }
  queues.disk->end_ready(&queues);
  while (queues.turns != nullptr && queues.turns->help(queues.far_works)) {
  }
  queues.far.leave_all();
  while (queues.lanes->help_urgent(queues.urgent_works)) {
  }
  while (auto* waits = queues.cached_writes.take()) (void)waits->run();
}

}  // namespace penstock::path
