// A small number for each thread of the process, by which threads are spread over what they share.
#pragma once

#include <atomic>

namespace penstock {

inline unsigned this_thread_number() noexcept {
  static std::atomic<unsigned> threads{0};
  thread_local const unsigned mine = threads.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

}  // namespace penstock
