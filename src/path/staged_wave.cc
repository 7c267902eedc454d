// Neighbouring extents of one cached read that share a slab.
#include <algorithm>
#include <utility>

#include "path/staged.hpp"
#include "staging/worker.hpp"

namespace penstock::path {

std::size_t staged::count_waves(std::span<const job> jobs) {
  return static_cast<std::size_t>(std::count_if(jobs.begin(), jobs.end(), [](const job& item) { return item.wave > 1; }));
}

void staged::make_waves(std::span<job> jobs, wave* made) {
  for (std::size_t i = 0; i < jobs.size(); i += jobs[i].wave) {
    if (jobs[i].wave == 1) continue;
    made->jobs = jobs.subspan(i, jobs[i].wave);
    made->remaining.store(made->jobs.size());
    for (auto& item : made->jobs) {
      progress_of(item).shared = made;
      item.with_next = &item != &made->jobs.back();
      made->length += item.length;
    }
    ++made;
  }
}

void staged::read_in_wave(job& item) {
  auto& mine = progress_of(item);
  auto& shared = *mine.shared;
  mine.failure = item.owner->stopped();
  item.moved = 0;
  if (mine.failure.ok()) mine.failure = enter(shared, item);
  if (mine.failure.ok()) {
    std::byte* const target = shared.slab.data() + (item.offset - shared.jobs.front().offset);
    auto got = or_without_memory([&] { return fill_slab(*item.file, target, item.length, item.offset, route_of(item)); },
                                 [] {
                                   return io_result{0, no_memory()};
                                 });
    item.moved = got.bytes_done;
    mine.failure = std::move(got.error);
  }
  if (shared.remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) wave_read(shared);
}

// Returns ok once the wave has its slab, or the reason why it gets none.
status staged::enter(wave& shared, const job& item) {
  auto seen = wave::state::untaken;
  if (shared.slab_state.compare_exchange_strong(seen, wave::state::taking)) {
    auto taken = or_no_memory([&] { return wait_for_slab(item, shared.length, item.queues->slab_user()); });
    if (taken) {
      shared.slab = *std::move(taken);
    } else {
      shared.refusal = taken.error();
    }
    shared.slab_state.store(wave::state::decided, std::memory_order_release);
    shared.slab_state.notify_all();
    return shared.refusal;
  }
  for (int looks = 0; looks < 100 && shared.slab_state.load(std::memory_order_acquire) != wave::state::decided; ++looks) staging::relax();
  // The link is behind, so waiting here means sleeping.
  if (seen = shared.slab_state.load(std::memory_order_acquire); seen != wave::state::decided) shared.slab_state.wait(seen);
  return shared.refusal;
}

// Called when the whole wave is in its slab. Bytes after the first gap do not count.
void staged::wave_read(wave& shared) {
  std::uint64_t bytes = 0;
  bool gap = false;
  for (auto& item : shared.jobs) {
    if (gap) item.moved = 0;
    bytes += item.moved;
    gap = gap || item.moved < item.length;
  }
  if (bytes == 0) {
    finish_wave(shared, {});
    return;
  }
  auto& copy = shared.copy;
  copy.target = shared.jobs.front().memory;
  copy.source = shared.slab.data();
  copy.bytes = bytes;
  copy.context = &shared;
  const auto ended = [](staging::copy_task& task, status outcome) { finish_wave(*static_cast<wave*>(task.context), outcome); };
  auto& first = shared.jobs.front();
  // Only finding the destinations may fail, and it precedes all copies.
  bool any = true;
  const auto aimed = or_no_memory([&]() -> status {
    if (first.row.empty()) {
      copy.parts.reserve(1);  // for a copy over a neighbour's link
    } else {
      any = aim(copy, first, bytes, shared.slab.data());
    }
    return {};
  });
  if (aimed.ok() && any) {
    send_over(copy, first, ended);
  } else {
    finish_wave(shared, aimed);
  }
}

void staged::finish_wave(wave& shared, const status& outcome) {
  shared.slab.give_back();
  const auto jobs = shared.jobs;  // the wave is destroyed with its last job
  for (auto& item : jobs) {
    if (outcome.ok()) {
      finish(item, item.moved, std::exchange(progress_of(item).failure, {}));
    } else {
      finish(item, 0, outcome);
    }
  }
}

}  // namespace penstock::path
