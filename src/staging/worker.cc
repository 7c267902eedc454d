#include "staging/worker.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/cpu_pause.hpp"
#include "base/no_memory.hpp"
#include "base/own_thread.hpp"

namespace penstock::staging {

namespace {

[[gnu::tls_model("initial-exec")]] thread_local bool is_worker = false;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

}  // namespace

bool on_worker_thread() noexcept { return is_worker; }

worker_scope::worker_scope() noexcept : before_(std::exchange(is_worker, true)) {}
worker_scope::~worker_scope() { is_worker = before_; }

status no_worker(const std::system_error& problem) {
  return {errc::out_of_memory, std::string("starting a worker thread: ") + problem.what(), error_domain::os, problem.code().value()};
}

void become_worker(const char* name) {
  is_worker = true;
  (void)prepare_to_throw();  // otherwise the first or_no_memory() does this
  set_up_own_thread(name);
  prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
}

// Linux applies the priority to one thread (setpriority(2), "C library/kernel differences"). If the call is refused, the thread keeps its
// priority.
void be_nice() noexcept {
  constexpr int nice = 15;
  (void)setpriority(PRIO_PROCESS, 0, nice);
}

void relax() noexcept {
  for (int i = 0; i < pauses_of_300_ns; ++i) cpu_pause();
}

namespace {

constexpr std::chrono::nanoseconds shortest_nap = std::chrono::microseconds(40);

}  // namespace

void nap() { std::this_thread::sleep_for(shortest_nap); }

void nap(std::chrono::nanoseconds at_least) { std::this_thread::sleep_for(std::max(at_least, shortest_nap)); }

}  // namespace penstock::staging
