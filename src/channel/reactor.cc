#include "channel/reactor.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/no_memory.hpp"
#include "core/gate.hpp"
#include "staging/worker.hpp"

namespace penstock::channel {

namespace {

using namespace std::chrono_literals;
constexpr auto moment = 100us;

std::chrono::microseconds until(reactor::clock::time_point when) {
  return std::max(std::chrono::ceil<std::chrono::microseconds>(when - reactor::clock::now()), 0us);
}

}  // namespace

result<std::shared_ptr<reactor>> reactor::make(std::shared_ptr<sys::peer> door) {
  auto with = std::make_shared<shared>();
  auto poller = door->make_poller();
  if (!poller) return poller.error();
  with->door = std::move(door);
  with->poller = *std::move(poller);
  std::shared_ptr<reactor> made(new reactor(with));
  if (auto problem = made->start(); !problem.ok()) return problem;
  core::gate::add(made);
  return made;
}

status reactor::start() {
  const std::lock_guard guard(starting_);
  if (thread_.joinable()) return {};
  try {
    thread_ = std::thread([with = shared_] { loop(with); });
  } catch (const std::system_error& refused) {
    return {errc::out_of_memory, std::string("starting the pipes' thread: ") + refused.what(), error_domain::os, refused.code().value()};
  }
  return {};
}

status reactor::rest(deadline_clock::time_point until) {
  if (fork_.forked()) return {};
  const auto has_handlers = [&] {
    const std::lock_guard guard(shared_->lock);
    return !shared_->handlers.empty();
  };
  for (; has_handlers(); std::this_thread::sleep_for(1ms)) {
    if (deadline_clock::now() >= until) return {errc::timed_out, "a closed pipe is still sending"};
  }
  const std::lock_guard guard(starting_);
  shared_->stopping.store(true);
  shared_->poller->interrupt();
  if (thread_.joinable()) thread_.join();
  shared_->stopping.store(false);
  return {};
}

reactor::~reactor() {
  if (fork_.forked()) {
    (void)new (std::nothrow) std::thread(std::move(thread_));  // the parent process's thread: must be neither joined nor detached
    return;
  }
  shared_->stopping.store(true);
  shared_->poller->interrupt();
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

result<std::uint64_t> reactor::add(int fd, std::shared_ptr<socket_handler> handler, bool writable) {
  if (auto problem = start(); !problem.ok()) return problem;
  std::uint64_t token = 0;
  {
    const std::lock_guard guard(shared_->lock);
    token = shared_->next_token++;
    shared_->handlers.emplace(token, shared::entry{std::move(handler)});
  }
  auto problem = shared_->poller->add(fd, token, writable);
  if (problem.ok()) return token;
  remove(fd, token);
  return problem;
}

status reactor::change(int fd, std::uint64_t token, bool writable) { return shared_->poller->change(fd, token, writable); }

void reactor::remove(int fd, std::uint64_t token) noexcept {
  shared_->poller->remove(fd);
  std::shared_ptr<socket_handler> gone;  // released without the lock
  const std::lock_guard guard(shared_->lock);
  if (const auto found = shared_->handlers.find(token); found != shared_->handlers.end()) {
    shared_->call_off(token, found->second);
    gone = std::move(found->second.handler);
    shared_->handlers.erase(found);
  }
}

// Call with the lock held.
void reactor::shared::call_off(std::uint64_t token, entry& of) noexcept {
  if (of.due != never) times.erase({std::exchange(of.due, never), token});
}

bool reactor::call_at(std::uint64_t token, clock::time_point when) noexcept {
  bool first = false;
  {
    const std::lock_guard guard(shared_->lock);
    const auto found = shared_->handlers.find(token);
    if (found == shared_->handlers.end()) return true;
    shared_->call_off(token, found->second);
    const bool noted = or_without_memory([&] { return shared_->times.emplace(when, token).second; }, [] { return false; });
    if (!noted) return false;
    found->second.due = when;
    first = shared_->times.begin()->second == token;
  }
  if (first) shared_->poller->interrupt();
  return true;
}

void reactor::call_off(std::uint64_t token) noexcept {
  const std::lock_guard guard(shared_->lock);
  if (const auto found = shared_->handlers.find(token); found != shared_->handlers.end()) shared_->call_off(token, found->second);
}

void reactor::call_those_due(shared& with) noexcept {
  for (const auto now = clock::now();;) {
    std::shared_ptr<socket_handler> handler;
    {
      const std::lock_guard guard(with.lock);
      if (with.times.empty() || with.times.begin()->first > now) return;
      const auto token = with.times.begin()->second;
      auto& entry = with.handlers.at(token);
      handler = entry.handler;
      with.call_off(token, entry);
    }
    handler->due();
  }
}

void reactor::later(std::uint64_t token) noexcept {
  bool asleep = false;
  {
    const std::lock_guard guard(shared_->lock);
    const bool noted = or_without_memory(
        [&] {
          shared_->later.push_back(token);
          return true;
        },
        [] { return false; });
    asleep = noted && !std::exchange(shared_->has_time_limit, true);
  }
  if (asleep) shared_->poller->interrupt();
}

void reactor::loop(const std::shared_ptr<shared>& with) {
  staging::become_worker("penstock-pipes");
  std::array<sys::socket_event, 64> events;
  std::vector<std::uint64_t> again;  // handlers that have more to do
  auto looked = clock::now();
  const auto tell = [&](const sys::socket_event& event) {
    std::shared_ptr<socket_handler> handler;
    {
      const std::lock_guard guard(with->lock);
      const auto found = with->handlers.find(event.token);
      if (found != with->handlers.end()) handler = found->second.handler;
    }
    if (handler == nullptr) return;
    const auto then = handler->ready(event.readable, event.writable);
    const bool is_in = std::find(again.begin(), again.end(), event.token) != again.end();  // also added by an event
    if (then == socket_handler::next::turn && !is_in) again.push_back(event.token);
    const std::lock_guard guard(with->lock);
    if (then == socket_handler::next::later) with->later.push_back(event.token);
  };
  while (!with->stopping.load()) {
    auto limit = sys::poller::for_ever;
    {
      const std::lock_guard guard(with->lock);
      with->has_time_limit = !with->later.empty();
      if (!with->times.empty()) limit = until(with->times.begin()->first);
      if (with->has_time_limit) limit = std::min<std::chrono::microseconds>(limit, moment);
    }
    const auto count = with->poller->wait(events, again.empty() ? limit : 0us);
    if (!count) {
      staging::nap();  // the kernel is temporarily out of memory
      continue;
    }
    for (const auto token : std::exchange(again, {})) tell({token, true, false});
    for (std::size_t i = 0; i < *count && !with->stopping.load(); ++i) tell(events[i]);
    call_those_due(*with);
    if (clock::now() - looked < moment) continue;
    std::vector<std::uint64_t> due;
    {
      const std::lock_guard guard(with->lock);
      due.swap(with->later);
    }
    for (const auto token : due) tell({token, false, false});
    looked = clock::now();
  }
}

}  // namespace penstock::channel
