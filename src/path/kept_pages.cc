#include "path/kept_pages.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "staging/worker.hpp"

namespace penstock::path {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds between_looks = 250ms;
// After unregistering pages, the thread leaves the driver to others for this many times as long.
constexpr int pause_share = 4;

// While the process exits, no driver is called, because its state may already be destroyed. Exit waits for a call in progress.
struct process_end {
  const ::pid_t process = ::getpid();
  std::mutex lock;  // held while pages are unregistered
  bool has_come = false;
};

// One object per process, because in a forked child, a thread that no longer exists may hold the parent's lock. Never destroyed, because
// threads may outlive static objects.
process_end& end_of_process() {
  static std::atomic<process_end*> known{nullptr};
  auto* now = known.load(std::memory_order_acquire);
  if (now != nullptr && now->process == ::getpid()) return *now;
  auto* const made = new process_end;
  if (!known.compare_exchange_strong(now, made)) {
    delete made;
    return *now;
  }
  if (now == nullptr) {
    (void)std::atexit([] {
      auto& here = *known.load(std::memory_order_acquire);
      if (here.process != ::getpid()) return;
      const std::lock_guard guard(here.lock);
      here.has_come = true;
    });
  }
  return *made;
}

}  // namespace

kept_pages::~kept_pages() {
  if (fork_.forked()) {
    if (thread_.joinable()) thread_.detach();  // the parent's thread
    return;
  }
  rest();
}

void kept_pages::rest() noexcept {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  std::unique_lock guard(lock_);
  stopping_ = false;
  while (!list_.empty()) let_go(list_.begin(), guard);
}

bool kept_pages::start() {
  if (thread_.joinable()) return true;
  (void)end_of_process();
  try {
    thread_ = std::thread(&kept_pages::loop, this);
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

bool kept_pages::keep(const std::shared_ptr<pinned_pages::pages>& held) {
  const std::uint64_t most = most_bytes_();
  const std::lock_guard guard(lock_);
  if (held->length() > most || bytes_ > most - held->length() || !start()) return false;
  list_.reserve(list_.size() + 1);
  list_.push_back(all_.keep(held));
  bytes_ += held->length();
  if (list_.size() == 1) changed_.notify_one();
  return true;
}

bool kept_pages::trim() noexcept {
  constexpr long by_nobody_else = 2;  // the references held by its entry and by this call
  std::unique_lock guard(lock_);
  for (bool any = false;; any = true) {
    const auto unused =
        std::find_if(list_.begin(), list_.end(), [](const entry& each) { return each->held().use_count() <= by_nobody_else; });
    if (unused == list_.end()) return any;
    let_go(unused, guard);
  }
}

std::vector<kept_pages::entry>::iterator kept_pages::next_to_go(std::uint64_t most_bytes) noexcept {
  auto oldest = list_.end();
  auto oldest_use = clock::now() - (bytes_ > most_bytes ? clock::duration::zero() : most_idle_);
  for (auto each = list_.begin(); each != list_.end(); ++each) {
    const auto held = (*each)->held();
    if (held == nullptr) return each;
    if (held->last_use() > oldest_use) continue;
    oldest = each;
    oldest_use = held->last_use();
  }
  return oldest;
}

void kept_pages::let_go(std::vector<entry>::iterator of, std::unique_lock<std::mutex>& guard) noexcept {
  const entry gone = std::move(*of);
  list_.erase(of);
  bytes_ -= gone->length();
  guard.unlock();
  {
    auto& process = end_of_process();
    const std::lock_guard undoing(process.lock);
    if (!process.has_come) all_.release(gone);
  }
  guard.lock();
}

void kept_pages::loop() {
  staging::become_worker("penstock-kept");
  const auto is_stopping = [&] { return stopping_; };
  std::unique_lock guard(lock_);
  for (;;) {
    changed_.wait(guard, [&] { return stopping_ || !list_.empty(); });
    if (stopping_) return;
    guard.unlock();
    const auto most = most_bytes_();
    guard.lock();
    const auto began = clock::now();
    clock::duration pause = between_looks;
    if (const auto next = next_to_go(most); next != list_.end()) {
      let_go(next, guard);
      pause = pause_share * (clock::now() - began);
    }
    changed_.wait_for(guard, pause, is_stopping);
  }
}

}  // namespace penstock::path
