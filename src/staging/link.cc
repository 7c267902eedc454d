#include "staging/link.hpp"

#include <algorithm>

#include "base/thread_number.hpp"
#include "device/owned.hpp"

namespace penstock::staging {

link::~link() {
  for (auto& slot : small_streams_) (void)device::owned_stream(session_, slot.load());
}

void link::add_neighbour(link& neighbour) noexcept {
  const auto count = neighbour_count();
  if (count == most_neighbours) return;
  neighbours_[count].store(&neighbour, std::memory_order_release);
  neighbour_count_.store(count + 1, std::memory_order_release);
}

link& link::quietest(std::size_t neighbours) noexcept {
  link* best = this;
  auto least = feeder_.pending();
  for (std::size_t i = 0, count = std::min(neighbours, neighbour_count()); i < count; ++i) {
    auto* const other = neighbour(i);
    if (other == nullptr) continue;
    const auto pending = other->feeder().pending();
    if (pending < least) {
      best = other;
      least = pending;
    }
  }
  return *best;
}

void link::drop_neighbour(const link& failed) noexcept {
  for (auto& each : neighbours_) {
    if (each.load(std::memory_order_relaxed) == &failed) each.store(nullptr, std::memory_order_release);
  }
}

result<device::stream> link::small_stream() {
  auto& slot = small_streams_[this_thread_number() % small_streams_.size()];
  if (auto* stream = slot.load(std::memory_order_acquire)) return stream;
  auto made = session_.make_prompt_stream();
  if (!made) return made.error();
  device::owned_stream mine(session_, *made);
  device::stream first = nullptr;
  return slot.compare_exchange_strong(first, mine.get()) ? mine.release() : first;
}

status link::copy_little(void* target, const void* source, std::size_t bytes, device::stream on) {
  constexpr std::uint64_t some_bytes = std::uint64_t{8} << 20;
  const bool occupied = occupations_.load(std::memory_order_relaxed) > 0 || feeder_.bytes_on_link() > some_bytes;
  return occupied ? session_.copy_beside(target, source, bytes, on) : session_.copy_small(target, source, bytes, on);
}

}  // namespace penstock::staging
