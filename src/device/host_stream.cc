#include "device/host_stream.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::device {
namespace {

// Blocks signals while a thread is created. The thread inherits the mask, so it never runs one of the program's signal handlers.
class signals_blocked {
 public:
  signals_blocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;
  ~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

std::uint64_t host_event::begin() {
  const std::lock_guard guard(lock_);
  return ++begun_;
}

void host_event::finish(std::uint64_t recording, std::shared_ptr<host_failure> failure) {
  {
    const std::lock_guard guard(lock_);
    if (recording <= done_) return;
    done_ = recording;
    failure_ = std::move(failure);
  }
  finished_.notify_all();
}

status host_event::outcome() const {
  if (failure_ == nullptr) return {};
  failure_->reported.store(true);
  return failure_->reason;
}

result<bool> host_event::reached() {
  const std::lock_guard guard(lock_);
  if (done_ < begun_) return false;
  status ended = outcome();
  if (!ended.ok()) return ended;
  return true;
}

std::uint64_t host_event::recordings() {
  const std::lock_guard guard(lock_);
  return begun_;
}

status host_event::wait_for(std::uint64_t recording) {
  std::unique_lock guard(lock_);
  finished_.wait(guard, [&] { return done_ >= recording; });
  return outcome();
}

status host_event::wait() {
  std::unique_lock guard(lock_);
  finished_.wait(guard, [this, until = begun_] { return done_ >= until; });
  return outcome();
}

host_stream::host_stream()
    : identity_([] {
        static std::atomic<std::uint64_t> last{0};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
        return last.fetch_add(1) + 1;
      }()) {}

result<std::shared_ptr<host_stream>> host_stream::start() {
  std::shared_ptr<host_stream> made(new host_stream);
  made->no_memory_ = std::make_shared<host_failure>(status(errc::out_of_memory, "host:0: not enough memory for stream work"));
  try {
    made->start_thread();
  } catch (const std::system_error& error) {
    return status(errc::out_of_memory, fmt::format("host:0: start a stream thread: {}", error.what()));
  }
  return made;
}

void host_stream::start_thread() {
  const signals_blocked scope;
  thread_ = std::thread([this] { run(); });
}

void host_stream::rest() {
  std::unique_lock guard(lock_);
  if (closed_ || has_left_ || done_ != pushed_) return;
  resting_ = true;
  arrived_.notify_one();
  progressed_.wait(guard, [this] { return has_left_ || !resting_; });
  if (has_left_ && thread_.joinable()) thread_.join();  // it no longer needs the lock
}

host_stream::~host_stream() {
  close();
  if (thread_.joinable()) thread_.join();
}

status host_stream::push(std::function<status()> work, std::shared_ptr<host_event> then) {
  return push(item{std::move(work), std::move(then), 0});
}

status host_stream::record(std::shared_ptr<host_event> target) { return push(item{nullptr, std::move(target), 0}); }

status host_stream::push(item next) {
  {
    const std::lock_guard guard(lock_);
    if (closed_) return {errc::closed, "host:0: the stream was destroyed"};
    if (queue_.size() >= queue_limit)
      return {errc::out_of_memory, fmt::format("host:0: {} operations are already waiting in the stream", queue_limit)};
    resting_ = false;
    if (has_left_) {
      if (thread_.joinable()) thread_.join();
      try {
        start_thread();
      } catch (const std::system_error& error) {
        return {errc::out_of_memory, fmt::format("host:0: start a stream thread: {}", error.what())};
      }
      has_left_ = false;
    }
    // An event counts its recordings, so the queue entry is allocated first, because that may fail for lack of memory.
    auto& queued = queue_.emplace_back(std::move(next));
    if (queued.event != nullptr) queued.recording = queued.event->begin();
    ++pushed_;
  }
  arrived_.notify_one();
  return {};
}

status host_stream::synchronize() {
  std::unique_lock guard(lock_);
  progressed_.wait(guard, [this, until = pushed_] { return done_ >= until; });
  const auto failure = std::exchange(for_synchronize_, nullptr);
  if (failure == nullptr || failure->reported.exchange(true)) return {};
  return failure->reason;
}

bool host_stream::idle() {
  const std::lock_guard guard(lock_);
  return done_ == pushed_ && for_synchronize_ == nullptr;
}

void host_stream::close() {
  {
    const std::lock_guard guard(lock_);
    closed_ = true;
    ended_ = has_left_;
  }
  arrived_.notify_one();
}

bool host_stream::ended() {
  const std::lock_guard guard(lock_);
  return ended_;
}

void host_stream::run() {
  pthread_setname_np(pthread_self(), "penstock-host");
  std::unique_lock guard(lock_);
  for (;;) {
    arrived_.wait(guard, [this] { return closed_ || resting_ || !queue_.empty(); });
    if (queue_.empty()) break;
    item next = std::move(queue_.front());
    queue_.pop_front();
    guard.unlock();
    perform(next);
    guard.lock();
    ++done_;
    progressed_.notify_all();
  }
  has_left_ = true;
  ended_ = closed_;
  progressed_.notify_all();
}

void host_stream::perform(item& next) {
  if (next.work) work_on(next.work);
  if (next.event != nullptr) next.event->finish(next.recording, std::exchange(for_event_, nullptr));
}

void host_stream::work_on(const std::function<status()>& work) {
  using failed = std::shared_ptr<host_failure>;
  failed failure = or_without_memory(
      [&]() -> failed {
        status ended = work();
        return ended.ok() ? nullptr : std::make_shared<host_failure>(std::move(ended));
      },
      [this] {
        no_memory_->reported.store(false);
        return no_memory_;
      });
  if (failure == nullptr) return;
  if (for_event_ == nullptr) for_event_ = failure;
  const std::lock_guard guard(lock_);
  if (for_synchronize_ == nullptr || for_synchronize_->reported.load()) for_synchronize_ = std::move(failure);
}

}  // namespace penstock::device
