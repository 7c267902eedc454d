// The first step of a request that is started in two. On the list of what has ended by itself, since the request may be there too.
#pragma once

#include <condition_variable>
#include <mutex>

#include "futures.hpp"

namespace penstock::python {

class prelude final : public under_way {
 public:
  explicit prelude(flight& of) : under_way(false), of_(of) {}
  // Once, with the GIL. Keeps the flight until it has been told of the end.
  void start(const flight::starter& first);
  void report() override;
  void cancel() { running_.cancel(); }
  // With the GIL, which is released while it blocks. Its outcome, or nothing: not within the time.
  std::optional<io_result> wait(std::chrono::nanoseconds time);
  // Until the flight is no longer between its steps, or the time has passed. With the GIL, as above.
  void wait_between(std::chrono::nanoseconds time);
  void step_has_changed();

 private:
  ~prelude() override = default;
  flight& of_;
  operation running_;
  io_result outcome_;  // once it has been told of the end
  std::mutex lock_;
  std::condition_variable changed_;
};

}  // namespace penstock::python
