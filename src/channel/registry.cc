#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <random>

#include "channel/members.hpp"

namespace penstock::channel {

std::span<const channel* const> all_channels() {
  static const std::array<const channel*, 3> members{&xth(), &cma(), &basic()};
  return members;
}

const channel* find_channel(std::string_view name) {
  const auto all = all_channels();
  const auto found = std::find_if(all.begin(), all.end(), [&](const channel* each) { return each->name() == name; });
  return found == all.end() ? nullptr : *found;
}

const identity& own_identity() {
  static std::mutex lock;  // guards what follows
  static identity own;
  const std::lock_guard guard(lock);
  if (own.pid != getpid()) {  // the first call, or the first of a forked child
    std::random_device random;
    own.process_token = std::uint64_t{random()} << 32 | random();
    own.boot_id = sys::boot_id();
    own.probe_address = reinterpret_cast<std::uintptr_t>(&own.process_token);
    own.pid = getpid();
  }
  return own;
}

}  // namespace penstock::channel
