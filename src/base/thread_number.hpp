// A small number for each thread in the process, used to spread threads over shared resources.
//
// All thread-local variables of this library are [[gnu::tls_model("initial-exec")]]: the loader reserves their memory when a thread starts.
// With the default model, in a library that is loaded at run time, the first use allocates memory, and glibc aborts the process if there is
// none. The loader's reserve for such libraries is small (1664 bytes for all of them), so these variables are few and one word each. They
// have no destructors, because registering one would allocate too.
#pragma once

#include <atomic>

namespace penstock {

inline unsigned this_thread_number() noexcept {
  static std::atomic<unsigned> threads{0};
  [[gnu::tls_model("initial-exec")]] thread_local const unsigned mine = threads.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

}  // namespace penstock
