#include "channel/reactor.hpp"

#include <array>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::channel {

result<std::shared_ptr<reactor>> reactor::make(std::shared_ptr<sys::peer> door) {
  auto with = std::make_shared<shared>();
  auto poller = door->make_poller();
  if (!poller) return poller.error();
  with->door = std::move(door);
  with->poller = *std::move(poller);
  std::shared_ptr<reactor> made(new reactor(with));
  try {
    made->thread_ = std::thread([with] { loop(with); });
  } catch (const std::system_error& refused) {
    return status(errc::out_of_memory, std::string("starting the pipes' thread: ") + refused.what(), error_domain::os,
                  refused.code().value());
  }
  return made;
}

reactor::~reactor() {
  if (fork_.forked()) {
    (void)new (std::nothrow) std::thread(std::move(thread_));  // of the parent: neither to be joined nor detached
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
  std::uint64_t token = 0;
  {
    const std::lock_guard guard(shared_->lock);
    token = shared_->next_token++;
    shared_->handlers.emplace(token, std::move(handler));
  }
  auto problem = shared_->poller->add(fd, token, writable);
  if (problem.ok()) return token;
  remove(fd, token);
  return problem;
}

status reactor::change(int fd, std::uint64_t token, bool writable) { return shared_->poller->change(fd, token, writable); }

void reactor::remove(int fd, std::uint64_t token) noexcept {
  shared_->poller->remove(fd);
  std::shared_ptr<socket_handler> gone;  // let go of without the lock
  const std::lock_guard guard(shared_->lock);
  if (const auto found = shared_->handlers.find(token); found != shared_->handlers.end()) {
    gone = std::move(found->second);
    shared_->handlers.erase(found);
  }
}

void reactor::loop(const std::shared_ptr<shared>& with) {
  staging::become_worker("penstock-pipes");
  std::array<sys::socket_event, 64> events;
  while (!with->stopping.load()) {
    const auto count = with->poller->wait(events);
    if (!count) {
      staging::nap();  // the kernel is out of memory, for a moment
      continue;
    }
    for (std::size_t i = 0; i < *count && !with->stopping.load(); ++i) {
      std::shared_ptr<socket_handler> handler;
      {
        const std::lock_guard guard(with->lock);
        const auto found = with->handlers.find(events[i].token);
        if (found != with->handlers.end()) handler = found->second;
      }
      if (handler != nullptr) handler->ready(events[i].readable, events[i].writable);
    }
  }
}

}  // namespace penstock::channel
