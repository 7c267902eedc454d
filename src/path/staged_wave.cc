// Neighbouring extents of one cached read in one slab: several lanes fill it at once, and one copy sends it.
#include <utility>

#include "path/staged.hpp"
#include "staging/worker.hpp"

namespace penstock::path {

void staged::read_in_wave(job& item) {
  auto& shared = *item.shared;
  item.failure = item.owner->stopped();
  item.moved = 0;
  if (item.failure.ok()) item.failure = enter(shared, item);
  if (item.failure.ok()) {
    auto got = or_without_memory(
        [&] {
          return fill_slab(*with_.kernel, *item.file, shared.slab.data + (item.offset - shared.offset), item.length, item.offset,
                           route_of(item));
        },
        [] {
          return io_result{0, no_memory()};
        });
    item.moved = got.bytes_done;
    item.failure = std::move(got.error);
  }
  if (shared.remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) wave_read(shared);
}

// The wave's slab is there when this returns, or the reason why it is not.
status staged::enter(wave& shared, const job& item) {
  auto seen = wave::state::untaken;
  if (shared.slab_state.compare_exchange_strong(seen, wave::state::taking)) {
    auto taken = or_no_memory([&] { return wait_for_slab(item, shared.length); });
    if (taken) {
      shared.slab = taken->release();
    } else {
      shared.refusal = taken.error();
    }
    shared.slab_state.store(wave::state::decided, std::memory_order_release);
    shared.slab_state.notify_all();
    return shared.refusal;
  }
  for (int looks = 0; looks < 100 && shared.slab_state.load(std::memory_order_acquire) != wave::state::decided; ++looks) staging::relax();
  // The link is behind: asleep, so that waiting costs nothing.
  if (seen = shared.slab_state.load(std::memory_order_acquire); seen != wave::state::decided) shared.slab_state.wait(seen);
  return shared.refusal;
}

// Everything of the wave is in its slab, up to the first gap, behind which nothing counts.
void staged::wave_read(wave& shared) {
  std::uint64_t bytes = 0;
  bool gap = false;
  for (job* item = shared.first; item != shared.first + shared.count; ++item) {
    if (gap) item->moved = 0;
    bytes += item->moved;
    gap = gap || item->moved < item->length;
  }
  if (bytes == 0) {
    finish_wave(shared, {});
    return;
  }
  auto& copy = shared.copy;
  copy.target = shared.memory;
  copy.source = shared.slab.data;
  copy.bytes = bytes;
  copy.context = &shared;
  copy.done = [](staging::copy_task& task, status outcome) {
    auto& done = *static_cast<wave*>(task.context);
    finish_wave(done, std::move(outcome));
  };
  submit(*shared.first, copy);
}

void staged::finish_wave(wave& shared, status outcome) {
  if (shared.slab) shared.first->place.via->pool().give_back(std::exchange(shared.slab, {}));
  job* const first = shared.first;
  const std::uint32_t count = shared.count;  // the wave goes with its last job
  for (std::uint32_t i = 0; i < count; ++i) {
    job& item = first[i];
    if (outcome.ok()) {
      finish(item, item.moved, std::exchange(item.failure, {}));
    } else {
      finish(item, 0, outcome);
    }
  }
}

}  // namespace penstock::path
