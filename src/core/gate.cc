#include "core/gate.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "base/no_memory.hpp"
#include "base/thread_number.hpp"
#include "core/resident.hpp"
#include "staging/worker.hpp"
#include "sys/fork_guard.hpp"

namespace penstock::core {

namespace {

// The counts only increase, so that a reader that finds them equal, `left` first, knows that nothing was in flight in between.
struct alignas(64) counts {
  std::atomic<std::uint64_t> entered{0};
  std::atomic<std::uint64_t> left{0};
};

struct entry {
  std::weak_ptr<resident> held;  // expired: the object is being destroyed
  const resident* object;
};

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): they belong to the process
constinit std::array<counts, 16> shards;
constinit std::atomic<gate::state> now{gate::state::open};
constinit std::atomic<std::uint32_t> process{1};                     // the number of forks, plus one
constinit std::mutex lock;                                           // guards `all`, waking, and closing the gate
constinit std::vector<entry>* all = nullptr;                         // never destroyed, because engines may outlive static objects
[[gnu::tls_model("initial-exec")]] thread_local unsigned depth = 0;  // public calls in progress on this thread
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

counts& mine() noexcept { return shards[this_thread_number() % shards.size()]; }

// A fork takes the lock, so that no child finds it locked. The child has none of the parent's calls but the one that forked it.
void watch_forks() {
  static const int watched = pthread_atfork(
      [] {
        lock.lock();
        if (now.load() == gate::state::asleep) sys::fork_guard::renew();
      },
      [] { lock.unlock(); },
      [] {
        for (auto& each : shards) {
          each.entered.store(0);
          each.left.store(0);
        }
        if (depth > 0) mine().entered.store(1);
        if (all != nullptr) all->clear();  // they belong to the parent
        process.fetch_add(1);
        now.store(gate::state::open);
        lock.unlock();
      });
  (void)watched;  // if that fails, quiesce() in a child may wait for calls of its parent
}

// Call with the lock held. Throws bad_alloc. `found` must outlive the lock, because releasing a last reference destroys the object.
void collect(std::vector<std::shared_ptr<resident>>& found) {
  if (all == nullptr) return;
  found.reserve(all->size());
  for (const auto& each : *all) {
    if (auto object = each.held.lock()) found.push_back(std::move(object));
  }
}

// Wakes everything, unless another thread has.
void wake_all() noexcept {
  std::vector<std::shared_ptr<resident>> woken;
  {
    const std::lock_guard guard(lock);
    if (now.load() != gate::state::asleep) return;
    or_without_memory([&] { collect(woken); }, [] {});
    sys::fork_guard::renew();
    for (const auto& each : woken) each->wake();
    gate::set(gate::state::open);
  }
}

[[gnu::noinline]] void wait_to_enter() noexcept {
  for (auto seen = now.load(); seen != gate::state::open; seen = now.load()) {
    if (seen == gate::state::closing && staging::on_worker_thread()) return;
    mine().left.fetch_add(1);
    seen == gate::state::asleep ? wake_all() : now.wait(seen);
    mine().entered.fetch_add(1);
  }
}

}  // namespace

// Either this thread sees that the gate is closed, or the thread that closes it sees this call.
calling::calling() noexcept {
  mine().entered.fetch_add(1);
  if (now.load() != gate::state::open && depth == 0) [[unlikely]]
    wait_to_enter();
  ++depth;
}

calling::~calling() {
  --depth;
  mine().left.fetch_add(1);
}

in_flight::in_flight() noexcept : process_(process.load(std::memory_order_relaxed)) { mine().entered.fetch_add(1); }

void in_flight::end() noexcept {
  if (std::exchange(process_, 0) == process.load(std::memory_order_relaxed)) mine().left.fetch_add(1);
}

void gate::add(const std::shared_ptr<resident>& added) {
  watch_forks();
  const std::lock_guard guard(lock);
  if (all == nullptr) all = new std::vector<entry>;
  all->push_back({added, added.get()});
}

resident::~resident() {
  const std::lock_guard guard(lock);
  if (all != nullptr) std::erase_if(*all, [this](const entry& each) { return each.object == this; });
}

std::vector<std::shared_ptr<resident>> gate::residents() {
  std::vector<std::shared_ptr<resident>> found;
  {
    const std::lock_guard guard(lock);
    collect(found);
  }
  std::ranges::reverse(found);
  return found;
}

void gate::set(state next) noexcept {
  now.store(next);
  now.notify_all();
}

// Takes the lock so as not to close the gate while another thread wakes the residents: that thread opens the gate afterwards.
bool gate::try_close() noexcept {
  const std::lock_guard guard(lock);
  for (auto seen = now.load(); seen == state::open || seen == state::asleep;) {
    if (now.compare_exchange_weak(seen, state::closing)) return true;
  }
  return false;
}

gate::keeper::keeper() noexcept { ++depth; }

gate::keeper::~keeper() {
  --depth;
  set(state::asleep);
}

bool gate::is_quiet() noexcept {
  std::uint64_t left = 0;
  std::uint64_t entered = 0;
  for (const auto& each : shards) left += each.left.load();
  for (const auto& each : shards) entered += each.entered.load();
  return entered == left && !is_ending();
}

bool gate::is_ending() noexcept {
  const std::lock_guard guard(lock);
  return all != nullptr && std::ranges::any_of(*all, [](const entry& each) { return each.held.expired(); });
}

bool gate::is_inside() noexcept { return depth > 0 || staging::on_worker_thread(); }

}  // namespace penstock::core
