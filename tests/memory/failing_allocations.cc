#include "memory/failing_allocations.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace penstock::testing {
namespace {

// How many more allocations succeed, plus one; 0: not armed. The one that takes it from 1 fails.
struct countdown {
  std::uint64_t left = 0;
  bool lasting = false;
};
thread_local countdown of_this_thread;
std::atomic<std::uint64_t> of_workers{0};
std::atomic<bool> of_workers_lasting{false};

std::atomic<std::uint64_t> one_in_so_many{0};
thread_local unsigned exposed = 0;
thread_local unsigned reliable = 0;
thread_local std::uint64_t random_state = 0;

std::atomic<std::uint64_t> failures{0};

std::atomic<std::uint64_t> of_threads{0};
std::atomic<bool> of_threads_lasting{false};
std::atomic<std::uint64_t> refused_threads{0};

// A thread is named once it runs: only a yes is kept. The main thread bears the name of the executable, "penstock_memory_tests".
bool on_worker() noexcept {
  thread_local bool known = false;
  if (known) return true;
  char name[17] = {};
  known = prctl(PR_GET_NAME, name) == 0 && std::strncmp(name, "penstock-", 9) == 0;
  return known;
}

// Counts one down. True: this one fails.
bool strikes(std::atomic<std::uint64_t>& left, const std::atomic<bool>& lasting) noexcept {
  auto seen = left.load(std::memory_order_relaxed);
  while (seen != 0) {
    if (seen == 1 && lasting.load(std::memory_order_relaxed)) return true;
    if (left.compare_exchange_weak(seen, seen - 1, std::memory_order_relaxed)) return seen == 1;
  }
  return false;
}

bool strikes(countdown& of) noexcept {
  if (of.left == 0) return false;
  if (of.left == 1 && of.lasting) return true;
  return --of.left == 0;
}

bool strikes_at_random() noexcept {
  const auto one_in = one_in_so_many.load(std::memory_order_relaxed);
  if (one_in == 0 || reliable > 0 || (exposed == 0 && !on_worker())) return false;
  if (random_state == 0) random_state = reinterpret_cast<std::uintptr_t>(&random_state) | 1;
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state % one_in == 0;
}

bool fails() noexcept {
  if (reliable > 0) return false;
  const bool failing = strikes(of_this_thread) || strikes_at_random() ||
                       (of_workers.load(std::memory_order_relaxed) != 0 && on_worker() && strikes(of_workers, of_workers_lasting));
  if (failing) failures.fetch_add(1, std::memory_order_relaxed);
  return failing;
}

// An allocation that fails takes its time, as in a kernel that searches for memory: other threads get ahead of the caller.
void let_others_run() noexcept {
  for (int turn = 0; turn < 200; ++turn) sched_yield();
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (fails()) {
    let_others_run();
    return nullptr;
  }
  if (bytes == 0) bytes = 1;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(bytes);
  void* made = nullptr;
  return posix_memalign(&made, alignment, bytes) == 0 ? made : nullptr;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* made = allocate(bytes, alignment);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

constexpr std::size_t usual = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

failing_allocations::failing_allocations(allocations_of whose, std::uint64_t nth, bool lasting) noexcept : whose_(whose) {
  if (whose == allocations_of::the_caller) {
    of_this_thread = {nth, lasting};
  } else if (whose == allocations_of::the_workers) {
    of_workers_lasting = lasting;
    of_workers = nth;
  }
}

failing_allocations::~failing_allocations() {
  if (whose_ == allocations_of::the_caller) {
    of_this_thread = {};
  } else if (whose_ == allocations_of::the_workers) {
    of_workers = 0;
  }
}

std::uint64_t failed_allocations() noexcept { return failures.load(); }

void fail_allocations_at_random(std::uint64_t one_in) noexcept { one_in_so_many = one_in; }

exposed_allocations::exposed_allocations() noexcept { ++exposed; }
exposed_allocations::~exposed_allocations() { --exposed; }
reliable_allocations::reliable_allocations() noexcept { ++reliable; }
reliable_allocations::~reliable_allocations() { --reliable; }

extern "C" void penstock_testing_spare_allocations(bool begins) { begins ? ++reliable : --reliable; }

failing_threads::failing_threads(std::uint64_t nth, bool lasting) noexcept {
  of_threads_lasting = lasting;
  of_threads = nth;
}
failing_threads::~failing_threads() { of_threads = 0; }
std::uint64_t failed_threads() noexcept { return refused_threads.load(); }

}  // namespace penstock::testing

using penstock::testing::allocate;
using penstock::testing::allocate_or_throw;
using penstock::testing::usual;

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, usual); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, usual); }
void* operator new(std::size_t bytes, std::align_val_t to) { return allocate_or_throw(bytes, static_cast<std::size_t>(to)); }
void* operator new[](std::size_t bytes, std::align_val_t to) { return allocate_or_throw(bytes, static_cast<std::size_t>(to)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, usual); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, usual); }
void* operator new(std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(to));
}
void* operator new[](std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(to));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept { std::free(memory); }

// In front of the C library's, for every thread that this executable and the libraries it loads start.
extern "C" [[gnu::visibility("default")]] int pthread_create(pthread_t* made, const pthread_attr_t* attributes, void* (*start)(void*),
                                                             void* argument) {
  using function = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto next = reinterpret_cast<function>(dlsym(RTLD_NEXT, "pthread_create"));
  if (penstock::testing::strikes(penstock::testing::of_threads, penstock::testing::of_threads_lasting)) {
    penstock::testing::refused_threads.fetch_add(1);
    return EAGAIN;
  }
  return next(made, attributes, start, argument);
}
