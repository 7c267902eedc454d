// What threads of an engine have in common, and how a thread passes short times.
#pragma once

#include <chrono>
#include <system_error>

#include "penstock/status.hpp"

namespace penstock::staging {

// Names the calling thread, blocks all signals in it (they belong to the program's own threads) and makes its naps short.
void become_worker(const char* name);

// Where others want the core, the calling thread has it less often than they. For good.
void be_nice() noexcept;

// A worker cannot be started: the error of std::thread, as errc::out_of_memory.
status no_worker(const std::system_error& problem);

// Whether the calling thread has become one, or counts as one: no engine may end on it.
bool on_worker_thread() noexcept;

// While it lives the calling thread counts as a worker: a thread of the driver's, say, on which the last owner of an engine may let go.
class worker_scope {
 public:
  worker_scope() noexcept;
  worker_scope(const worker_scope&) = delete;
  worker_scope& operator=(const worker_scope&) = delete;
  ~worker_scope();

 private:
  bool before_;
};

// Between two looks at memory that another thread will write: about 0.3 us.
void relax() noexcept;

// A pause of about 45 us for workers, 100 us for threads with the default timer slack.
void nap();
// The same, or a longer one.
void nap(std::chrono::nanoseconds at_least);

}  // namespace penstock::staging
