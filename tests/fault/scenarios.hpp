// Every public operation in a form that a fault loop can run with a fault armed, and then check. Made in a world, with everything that it
// needs (open files, memory) prepared; destroyed before the world.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fault/faulty_world.hpp"
#include "penstock/engine.hpp"

namespace penstock::testing {

// How a trial went.
struct findings {
  std::string wrong;           // a broken promise: bytes that are not right, memory or file touched outside the request; empty: none
  std::vector<status> errors;  // of the operation
  bool failed = false;         // with an error, or where there is no room for one with a -1
  std::string file;            // that its errors must name; empty: none
  bool short_count = false;    // ended ok with fewer bytes than there are
};

class scenario {
 public:
  virtual ~scenario() = default;
  // Puts files and memory in their first state. No fault is armed.
  virtual void prepare() = 0;
  // The operation, once, to its end.
  virtual void act() = 0;
  // No fault is armed.
  virtual findings judge() = 0;
};

struct scenario_entry {
  std::string name;
  engine_options options;
  std::function<std::unique_ptr<scenario>(faulty_world&)> make;
};

const std::vector<scenario_entry>& all_scenarios();

}  // namespace penstock::testing
