#include "completions.hpp"

#include <pthread.h>

#include <utility>

#include "errors.hpp"
#include "gil.hpp"

namespace penstock::python {

namespace {

// Counts forks, as seen from the newest process.
std::atomic<unsigned> process_number{0};
std::atomic<completions*> current{nullptr};
std::atomic<bool> interpreter_ends{false};

}  // namespace

class completions {
 public:
  // That of this process, with its thread; null once the interpreter ends. With the GIL.
  static completions* get() {
    if (interpreter_ends.load()) return nullptr;
    auto* found = current.load();
    if (found == nullptr) {
      found = new completions();  // never freed: a callback may come late
      found->thread_ = std::thread([found] { found->run(); });
      current.store(found);
    }
    return found;
  }

  void begun() {
    const std::lock_guard guard(lock_);
    ++count_;
  }
  void put_back() {
    const std::lock_guard guard(lock_);
    --count_;
  }

  void push(under_way* ended) noexcept {
    const std::lock_guard guard(lock_);
    if (stopped_) return;  // leaked, with all that it keeps
    ended_.push_back(ended);
    if (ended_.size() == 1) wake_.notify_one();
  }

  // With the GIL, which is released while it blocks. Waits until nothing is under way. False: interrupted, and the exception is set.
  bool settle() {
    for (;;) {
      {
        const without_gil unlocked;
        std::unique_lock guard(lock_);
        if (quiet_.wait_for(guard, interrupt_interval, [this] { return count_ == 0 && ended_.empty() && !reporting_; })) return true;
      }
      if (interrupted()) return false;
    }
  }

  // With the GIL. The same, and ends the thread.
  void finish() {
    if (!settle()) PyErr_Clear();
    const without_gil unlocked;
    {
      const std::lock_guard guard(lock_);
      stopping_ = true;
      wake_.notify_one();
    }
    thread_.join();
  }

 private:
  void run() {
    const auto gil = PyGILState_Ensure();
    auto* state = PyEval_SaveThread();
    std::vector<under_way*> taken;
    while (take(taken)) {
      if (interpreter_is_finalizing()) return;  // without the handler of atexit having run
      take_gil(state);
      std::size_t kept = 0;
      for (auto* each : taken) {
        kept += each->keeps_process_ ? 1 : 0;
        each->report();
        each->release();
      }
      taken.clear();
      state = PyEval_SaveThread();
      const std::lock_guard guard(lock_);
      count_ -= kept;
      reporting_ = false;
      quiet_.notify_all();
    }
    take_gil(state);
    PyGILState_Release(gil);
  }

  // False: to end.
  bool take(std::vector<under_way*>& into) {
    std::unique_lock guard(lock_);
    wake_.wait(guard, [this] { return !ended_.empty() || stopping_; });
    if (ended_.empty()) {
      stopped_ = true;
      return false;
    }
    into.swap(ended_);
    reporting_ = true;
    return true;
  }

  std::mutex lock_;  // guards what follows
  std::condition_variable wake_;
  std::condition_variable quiet_;
  std::vector<under_way*> ended_;
  std::size_t count_ = 0;  // of those that keep the process, from begin() until they are reported
  bool reporting_ = false;
  bool stopping_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

void under_way::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void under_way::begin() {
  process_ = process_number.load();
  home_ = completions::get();
  if (home_ != nullptr && keeps_process_) home_->begun();
  retain();
}

void under_way::never_began() {
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

bool under_way::left_behind() const noexcept { return process_ != process_number.load(std::memory_order_relaxed); }

void add_completions(nb::module_& module) {
  // The lock may be held, and there is no thread, in a child: it begins anew.
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
      "Waits for all requests under way; what is begun later is waited for by whoever begins it. For atexit.");
  module.def(
      "_settle",
      [] {
        auto* running = current.load();
        if (running != nullptr && !running->settle()) throw nb::python_error();
      },
      "Waits until all requests under way have ended and let go of what they kept. For tests.");
  module.def(
      "_under_way", [] { return under_way::count(); }, "How many requests, under way or shown by an object, there are. For tests.");
}

}  // namespace penstock::python
