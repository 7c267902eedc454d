// Code shared by all threads of an engine, and short pauses.
#pragma once

#include <chrono>
#include <system_error>

#include "penstock/status.hpp"

namespace penstock::staging {

// Names the calling thread, blocks all signals in it (they are for the program's own threads) and gives it a short timer slack.
void become_worker(const char* name);

// Permanently lowers the priority of the calling thread, so that other threads get the core first.
void be_nice() noexcept;

// Converts the error that std::thread raises when a worker cannot start into errc::out_of_memory.
status no_worker(const std::system_error& problem);

// Returns true if the calling thread is a worker, or is treated as one. No engine may be destroyed on it.
bool on_worker_thread() noexcept;

// Treats the calling thread as a worker during its own lifetime. Used, for example, for a driver thread that may release the last
// reference to an engine.
class worker_scope {
 public:
  worker_scope() noexcept;
  worker_scope(const worker_scope&) = delete;
  worker_scope& operator=(const worker_scope&) = delete;
  ~worker_scope();

 private:
  bool before_;
};

// Pauses for about 0.3 us between two reads of memory that another thread will write.
void relax() noexcept;

// Sleeps for about 45 us on worker threads, 100 us on threads with the default timer slack.
void nap();
// Sleeps for at least the given time.
void nap(std::chrono::nanoseconds at_least);

}  // namespace penstock::staging
