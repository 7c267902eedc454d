// Makes chosen allocations of this executable fail, as when memory is exhausted: operator new throws std::bad_alloc (the nothrow forms
// return null). The global operators are replaced in every executable that links failing_allocations.cc; until something is armed they only
// allocate. Also makes starting a thread fail. Thread-safe; what is armed for the calling thread belongs to that thread.
#pragma once

#include <cstdint>

namespace penstock::testing {

enum class allocations_of : std::uint8_t {
  nobody,
  the_caller,   // of the thread that arms
  the_workers,  // of every thread whose name begins with "penstock-"
};

// While it lives, the nth allocation (from 1) fails; lasting: the ones after it too. At most one for the workers at a time.
class failing_allocations {
 public:
  failing_allocations(allocations_of whose, std::uint64_t nth, bool lasting = false) noexcept;
  failing_allocations(const failing_allocations&) = delete;
  failing_allocations& operator=(const failing_allocations&) = delete;
  ~failing_allocations();

 private:
  const allocations_of whose_;
};

// Allocations that have been made to fail, in this process.
std::uint64_t failed_allocations() noexcept;

// From now on each allocation of a thread whose name begins with "penstock-", and of a thread that is exposed, fails with a chance of one
// in this many; 0: none does.
void fail_allocations_at_random(std::uint64_t one_in) noexcept;
// While it lives the calling thread's allocations may fail at random: around calls of the library.
class exposed_allocations {
 public:
  exposed_allocations() noexcept;
  exposed_allocations(const exposed_allocations&) = delete;
  exposed_allocations& operator=(const exposed_allocations&) = delete;
  ~exposed_allocations();
};
// While it lives they do not, whatever else holds: in what a test does inside callbacks.
class reliable_allocations {
 public:
  reliable_allocations() noexcept;
  reliable_allocations(const reliable_allocations&) = delete;
  reliable_allocations& operator=(const reliable_allocations&) = delete;
  ~reliable_allocations();
};

// While it lives, the nth thread that is started (from 1) is refused with EAGAIN; lasting: the ones after it too. One at a time.
class failing_threads {
 public:
  explicit failing_threads(std::uint64_t nth, bool lasting = false) noexcept;
  failing_threads(const failing_threads&) = delete;
  failing_threads& operator=(const failing_threads&) = delete;
  ~failing_threads();
};
std::uint64_t failed_threads() noexcept;

}  // namespace penstock::testing
