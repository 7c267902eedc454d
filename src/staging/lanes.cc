#include "staging/lanes.hpp"

#include <pthread.h>
#include <sys/prctl.h>

#include <csignal>
#include <string>
#include <system_error>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock::staging {

namespace {

thread_local bool is_worker = false;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

}  // namespace

void relax() noexcept {
#if defined(__x86_64__)
  for (int i = 0; i < 8; ++i) _mm_pause();
#else
  std::this_thread::yield();
#endif
}

bool on_worker_thread() noexcept { return is_worker; }

worker_scope::worker_scope() noexcept : before_(std::exchange(is_worker, true)) {}
worker_scope::~worker_scope() { is_worker = before_; }

void become_worker(const char* name) {
  is_worker = true;
  pthread_setname_np(pthread_self(), name);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
}

void nap() { std::this_thread::sleep_for(std::chrono::microseconds(40)); }

lanes::lanes(unsigned count, std::chrono::microseconds spin, feeders& copies) : count_(count), spin_(spin), copies_(copies) {}

lanes::~lanes() {
  {
    const std::lock_guard guard(lock_);
    stopping_.store(true);
  }
  alarm_.notify_all();
  for (auto& thread : threads_) thread.join();
}

status lanes::ready() {
  if (started_.load(std::memory_order_acquire)) return {};
  const std::lock_guard guard(lock_);
  if (started_.load()) return {};
  threads_.reserve(count_);
  try {
    while (threads_.size() < count_) threads_.emplace_back(&lanes::loop, this, static_cast<unsigned>(threads_.size()));
  } catch (const std::system_error& problem) {
    // Fewer lanes are slower, none is a failure.
    if (threads_.empty()) {
      return {errc::out_of_memory, std::string("starting a worker thread: ") + problem.what(), error_domain::os, problem.code().value()};
    }
  }
  started_.store(true, std::memory_order_release);
  return {};
}

status lanes::push(work_list& list, work& first, work& last, std::size_t count) {
  if (auto problem = ready(); !problem.ok()) return problem;
  queue_.push(list, first, last, count);
  wake(count);
  return {};
}

bool lanes::help(work_list& list) {
  work* item = queue_.take_from(list);
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

void lanes::push_urgent(work_list& list, work& item) {
  (void)ready();  // without threads, whoever waits runs it
  urgent_.push(list, item, item, 1);
  wake(1);
}

bool lanes::help_urgent() {
  work* item = urgent_.take();
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

void lanes::nudge() {
  if (copies_.watched()) return;
  if (!ready().ok()) return;  // copies only come from works, and those only run after a start
  wake(1);
}

// Wakes up to two lanes. A burst wakes all without its submitter paying for each: whoever finds work wakes the next two.
void lanes::wake(std::size_t works) {
  const unsigned asleep = sleepers_.load();
  if (asleep == 0 || works == 0) return;
  // A sleeper that has checked for work holds the lock until it waits, so passing through the lock makes the signal count.
  { const std::lock_guard guard(lock_); }
  alarm_.notify_one();
  if (asleep > 1 && works > 1) alarm_.notify_one();
}

bool lanes::something_to_do() const noexcept {
  return queue_.size() > 0 || urgent_.size() > 0 || stopping_.load() || (copies_.outstanding() && !copies_.watched());
}

void lanes::sleep() {
  std::unique_lock guard(lock_);
  sleepers_.fetch_add(1);
  alarm_.wait(guard, [this] { return something_to_do(); });
  sleepers_.fetch_sub(1);
}

void lanes::loop(unsigned index) {
  become_worker(("penstock-" + std::to_string(index)).c_str());
  using clock = std::chrono::steady_clock;
  auto busy = clock::now();
  for (;;) {
    if (help_urgent()) {
      copies_.pump();
      busy = clock::now();
      continue;
    }
    if (work* item = queue_.take()) {
      wake(queue_.size());
      (void)item->run();
      copies_.pump();
      busy = clock::now();
      continue;
    }
    if (copies_.outstanding() && copies_.try_watch()) {
      if (!copies_.pump()) {
        // Right after work, copies are short and more work is near; later there is time.
        if (clock::now() - busy < spin_) {
          relax();
        } else {
          nap();
        }
      }
      copies_.unwatch();
      continue;
    }
    if (stopping_.load() && queue_.size() == 0 && urgent_.size() == 0 && !copies_.outstanding()) return;
    if (clock::now() - busy < spin_) {
      relax();
    } else if (stopping_.load()) {
      nap();
    } else {
      sleep();
    }
  }
}

}  // namespace penstock::staging
