// A small number for each thread of the process, by which threads are spread over what they share.
//
// All variables of threads in this library are [[gnu::tls_model("initial-exec")]]: the loader gives each thread room for them when it
// starts. In the usual model of a library that is loaded at run time the first use allocates, and where there is no memory for that, glibc
// aborts the process. The room that the loader keeps for such libraries is small (1664 bytes, of all of them), so these variables are
// words, few, and none of them has a destructor, whose registration allocates too.
#pragma once

#include <atomic>

namespace penstock {

inline unsigned this_thread_number() noexcept {
  static std::atomic<unsigned> threads{0};
  [[gnu::tls_model("initial-exec")]] thread_local const unsigned mine = threads.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

}  // namespace penstock
