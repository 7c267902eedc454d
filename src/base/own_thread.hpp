// Sets up a thread that the library creates.
#pragma once

#include <pthread.h>

#include <csignal>

namespace penstock {

// Names the calling thread and blocks all signals in it, because they are for the program's own threads. name: at most 15 characters.
inline void set_up_own_thread(const char* name) noexcept {
  pthread_setname_np(pthread_self(), name);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace penstock
