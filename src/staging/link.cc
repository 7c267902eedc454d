#include "staging/link.hpp"

#include "base/thread_number.hpp"
#include "device/owned.hpp"

namespace penstock::staging {

link::~link() {
  for (auto& slot : small_streams_) (void)device::owned_stream(session_, slot.load());
}

result<device::stream> link::small_stream() {
  auto& slot = small_streams_[this_thread_number() % small_streams_.size()];
  if (auto* stream = slot.load(std::memory_order_acquire)) return stream;
  auto made = device::owned_stream::make(session_);
  if (!made) return made.error();
  device::stream first = nullptr;
  return slot.compare_exchange_strong(first, made->get()) ? made->release() : first;
}

}  // namespace penstock::staging
