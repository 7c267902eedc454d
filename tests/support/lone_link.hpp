// A link into a device, with its own feeder and pool, for tests that need no engine.
#pragma once

#include <cstddef>

#include "staging/link.hpp"
#include "sys/kernel.hpp"

namespace penstock::testing {

class lone_link {
 public:
  // emulated: false if the host device stands in for a GPU.
  lone_link(sys::kernel& kernel, device::session& session, bool emulated = true)
      : feeder_(session), pool_(kernel, budget_, budget_.limit_bytes, budget_.limit_bytes), link_(session, feeder_, pool_, emulated) {}
  // Returns the place of device memory behind this link.
  [[nodiscard]] staging::place place() noexcept { return {device::memory_type::device, &link_}; }

 private:
  staging::pinned_budget budget_{std::size_t{64} << 20};
  staging::feeder feeder_;
  staging::slab_pool pool_;
  staging::link link_;
};

}  // namespace penstock::testing
