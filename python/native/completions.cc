#include "completions.hpp"

#include <pthread.h>

#include <chrono>
#include <memory>
#include <system_error>
#include <utility>

#include "errors.hpp"
#include "gil.hpp"

namespace penstock::python {

namespace {

using clock = std::chrono::steady_clock;

// Time after which a completed request is reported if no thread has waited for it: if only the request keeps itself alive, and if Python
// refers to it, so that a thread may still wait.
constexpr std::chrono::microseconds moment(200);
constexpr std::chrono::milliseconds longer_moment(5);
constexpr auto never = clock::time_point::max();

// Number of forks from the first process to this one.
std::atomic<unsigned> process_number{0};
std::atomic<completions*> current{nullptr};
std::atomic<bool> interpreter_ends{false};

}  // namespace

unsigned this_process() noexcept { return process_number.load(std::memory_order_relaxed); }

class completions {
 public:
  // Returns this process's object, with its thread; null once the interpreter is shutting down. Needs the GIL.
  static completions* get() {
    if (interpreter_ends.load()) return nullptr;
    if (auto* found = current.load()) {
      found->ready();
      return found;
    }
    auto made = std::make_unique<completions>();
    made->ready();
    current.store(made.get());
    return made.release();  // never freed: a callback may run late
  }

  // Starts the thread unless it is running. Raises a Python error if the thread cannot be started.
  void ready() {
    if (has_thread_.load()) return;
    try {
      const std::lock_guard guard(lock_);
      start();
    } catch (const std::system_error& problem) {
      raise(status::from_errno(problem.code().value(), "start the thread for completions"));
    }
  }
  void begun() {
    const std::lock_guard guard(lock_);
    ++count_;
  }
  void put_back() noexcept {
    const std::lock_guard guard(lock_);
    --count_;
    quiet_.notify_all();
  }

  void push(under_way* ended) noexcept {
    const std::lock_guard guard(lock_);
    if (stopped_) return;  // leaked, with everything that it keeps
    (first_ == nullptr ? first_ : last_->next_) = ended;
    last_ = ended;
    if (!has_thread_.load()) start_if_possible();
    if (ended->hurries() || settling_ > 0) {
      report_at(clock::now());
    } else if (!ended->is_awaited()) {
      report_at(clock::now() + (ended->references_.load() > 1 ? clock::duration(longer_moment) : moment));
    }
  }

  void hurry() noexcept {
    const std::lock_guard guard(lock_);
    if (first_ != nullptr) report_at(clock::now());
  }

  // Releases the settled requests at the head of the list. Call after a thread has waited: the module's thread was perhaps not woken for
  // its request.
  void waited() noexcept {
    under_way* settled = nullptr;
    {
      const std::lock_guard guard(lock_);
      auto** end = &settled;
      std::size_t kept = 0;
      for (; first_ != nullptr && first_->settled(); end = &(*end)->next_) {
        *end = first_;
        first_ = std::exchange(first_->next_, nullptr);
        kept += (*end)->keeps_process_ ? 1 : 0;
      }
      if (first_ != nullptr) report_at(clock::now() + longer_moment);
      count_ -= kept;
      if (settled != nullptr) quiet_.notify_all();
    }
    while (settled != nullptr) std::exchange(settled, settled->next_)->release();
  }

  // Waits until nothing is in flight. Needs the GIL and releases it while blocked. Returns false if a signal handler has raised; the
  // exception is then set.
  bool settle() {
    for (;;) {
      {
        const without_gil unlocked;
        std::unique_lock guard(lock_);
        if (first_ != nullptr) report_at(clock::now());
        ++settling_;
        const bool quiet = quiet_.wait_for(guard, interrupt_interval, [this] { return count_ == 0 && first_ == nullptr && !reporting_; });
        --settling_;
        if (quiet) return true;
      }
      if (interrupted()) return false;
    }
  }

  // The same, and stops the thread.
  void finish() {
    if (!settle()) PyErr_Clear();
    const without_gil unlocked;
    {
      const std::lock_guard guard(lock_);
      stopping_ = true;
      wake_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

  // Reports what has completed, then ends the thread until the next request. Releases the GIL.
  void rest() {
    const without_gil unlocked;
    static std::mutex one_at_a_time;
    const std::lock_guard alone(one_at_a_time);
    std::unique_lock guard(lock_);
    if (!has_thread_.load()) return;
    resting_ = true;
    wake_.notify_one();
    quiet_.wait(guard, [this] { return !resting_; });
    auto gone = std::move(leaving_);
    guard.unlock();
    gone.join();  // it needs the GIL
  }

 private:
  // Call with the lock held.
  void start() {
    if (has_thread_.load()) return;
    thread_ = std::thread([this] { run(); });
    has_thread_.store(true);
  }
  // Without a thread, the next request or the waiting thread reports.
  void start_if_possible() noexcept {
    try {
      start();
    } catch (const std::system_error&) {
    }
  }
  void run() {
    const auto gil = PyGILState_Ensure();
    auto* state = PyEval_SaveThread();
    while (auto* taken = take()) {
      std::size_t kept = 0;
      if (auto* each = without_settled(taken, kept); each != nullptr) {
        if (interpreter_is_finalizing()) return;  // the atexit handler has not run
        take_gil(state);
        while (each != nullptr) {
          auto* const next = each->next_;
          kept += each->keeps_process_ ? 1 : 0;
          each->report();
          each->release();
          each = next;
        }
        state = PyEval_SaveThread();
      }
      const std::lock_guard guard(lock_);
      count_ -= kept;
      reporting_ = false;
      quiet_.notify_all();
    }
    take_gil(state);
    PyGILState_Release(gil);
  }

  // Releases the settled requests. Returns the others, in order.
  static under_way* without_settled(under_way* first, std::size_t& kept) noexcept {
    auto** left = &first;
    while (auto* const each = *left) {
      if (!each->settled()) {
        left = &each->next_;
        continue;
      }
      *left = each->next_;
      kept += each->keeps_process_ ? 1 : 0;
      each->release();
    }
    return first;
  }

  // Call with the lock held.
  void report_at(clock::time_point when) noexcept {
    if (when >= report_at_) return;
    report_at_ = when;
    wake_.notify_one();
  }

  // Returns all completed requests, in order. Null: the thread must exit.
  under_way* take() {
    std::unique_lock guard(lock_);
    while (!stopping_ && !resting_ && (first_ == nullptr || clock::now() < report_at_)) {
      if (first_ == nullptr && clock::now() >= report_at_) report_at_ = never;
      report_at_ == never ? wake_.wait(guard) : void(wake_.wait_until(guard, report_at_));
    }
    if (first_ == nullptr && !stopping_) {
      resting_ = false;
      has_thread_.store(false);
      leaving_ = std::move(thread_);
      quiet_.notify_all();
      return nullptr;
    }
    report_at_ = never;
    stopped_ = first_ == nullptr;
    reporting_ = !stopped_;
    return std::exchange(first_, nullptr);
  }

  std::mutex lock_;  // guards the members below
  std::condition_variable wake_;
  std::condition_variable quiet_;
  under_way* first_ = nullptr;           // list of completed requests, linked by next_
  under_way* last_ = nullptr;            // valid if first_ is not null
  clock::time_point report_at_ = never;  // when the thread looks at the list
  int settling_ = 0;                     // threads in settle()
  std::size_t count_ = 0;                // requests that the interpreter waits for, from begin() until they are reported
  bool reporting_ = false;
  bool stopping_ = false;
  bool stopped_ = false;
  bool resting_ = false;                 // the thread must end once it has reported everything
  std::atomic<bool> has_thread_{false};  // written with the lock held
  std::thread thread_;
  std::thread leaving_;  // the last thread that ended for rest()
};

void under_way::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void under_way::begin() {
  home_ = completions::get();
  process_ = this_process();
  if (home_ != nullptr && keeps_process_) home_->begun();
  retain();
}

void under_way::never_began() noexcept {
  if (home_ != nullptr && keeps_process_) home_->put_back();
  release();
}

void under_way::ended() noexcept {
  if (home_ != nullptr) {
    home_->push(this);
  } else {
    release();
  }
}

under_way::awaited::~awaited() {
  of_.waiting_.fetch_sub(1);
  if (of_.home_ != nullptr && !of_.left_behind()) of_.home_->waited();
}

void under_way::hurry() noexcept {
  if (home_ != nullptr && !left_behind()) home_->hurry();
}

bool under_way::left_behind() const noexcept { return process_ != this_process(); }

void rest_completions() {
  if (auto* running = current.load()) running->rest();
}

void add_completions(nb::module_& module) {
  // In a forked child the lock may be held and the thread does not exist, so the child creates a new object.
  pthread_atfork(nullptr, nullptr, [] {
    process_number.fetch_add(1);
    current.store(nullptr);
  });
  module.def(
      "_finish",
      [] {
        interpreter_ends.store(true);
        if (auto* running = current.exchange(nullptr)) running->finish();
      },
      "Waits for all requests in flight. Requests started later must be waited for by whoever starts them. For atexit.");
  module.def(
      "_settle",
      [] {
        auto* running = current.load();
        if (running != nullptr && !running->settle()) throw nb::python_error();
      },
      "Waits until all requests in flight have completed and released what they kept. For tests.");
  module.def(
      "_under_way", [] { return under_way::count(); },
      "Returns the number of requests that are in flight or referenced by an object. For tests.");
}

}  // namespace penstock::python
