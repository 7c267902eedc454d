// An object with threads, sockets or pinned memory that must be given up before the process is frozen. Add it with gate::add().
#pragma once

#include <string>

#include "penstock/options.hpp"
#include "penstock/status.hpp"

namespace penstock::core {

class resident {
 public:
  resident() = default;
  resident(const resident&) = delete;
  resident& operator=(const resident&) = delete;
  // Names the object if it cannot be frozen until the user closes it; otherwise empty.
  [[nodiscard]] virtual std::string obstacle() const { return {}; }
  // Gives everything up. The next use brings it back. Called while no call and no operation is in flight. Blocks until its own background
  // work has ended. Errors: timed_out, and those of what it must complete.
  virtual status rest(deadline_clock::time_point until) = 0;
  // Called before the next call after a rest, for what use alone would not bring back.
  virtual void wake() noexcept {}

 protected:
  virtual ~resident();  // removes it from the gate's list
};

}  // namespace penstock::core
