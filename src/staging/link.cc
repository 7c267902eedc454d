#include "staging/link.hpp"

#include "base/no_memory.hpp"

namespace penstock::staging {

link::~link() {
  for (auto& slot : small_streams_) {
    if (auto* stream = slot.load()) (void)or_no_memory([&] { return session_.destroy_stream(stream); });
  }
}

result<device::stream> link::small_stream() {
  static std::atomic<unsigned> threads{0};
  thread_local const unsigned mine = threads.fetch_add(1);
  auto& slot = small_streams_[mine % small_streams_.size()];
  if (auto* stream = slot.load(std::memory_order_acquire)) return stream;
  auto made = session_.make_stream();
  if (!made) return made.error();
  device::stream expected = nullptr;
  if (slot.compare_exchange_strong(expected, *made)) return *made;
  (void)session_.destroy_stream(*made);
  return expected;
}

}  // namespace penstock::staging
