#include "channel/reactors.hpp"

#include <algorithm>
#include <thread>

namespace penstock::channel {

namespace {

// One for each further connection of a pipe with the maximum number of connections, but no more than can run concurrently.
std::size_t most() { return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 2, 15); }

}  // namespace

result<std::shared_ptr<reactor>> reactors::next() {
  const std::lock_guard guard(lock_);
  if (made_.size() < most()) {
    auto made = reactor::make(door_);
    if (!made && made_.empty()) return made.error();
    if (made) made_.push_back(*std::move(made));
  }
  return made_[turn_++ % made_.size()];
}

}  // namespace penstock::channel
