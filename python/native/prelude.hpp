// The first step of a request started by start_in_two(). It has its own entry in the list of completions, because the request itself may
// also be in the list.
#pragma once

#include <condition_variable>
#include <mutex>

#include "futures.hpp"

namespace penstock::python {

class prelude final : public under_way {
 public:
  explicit prelude(flight& of) : under_way(false), of_(of) {}
  // Call once, with the GIL. Keeps the flight until its completion is reported.
  void start(const flight::starter& first);
  void report() override;
  [[nodiscard]] bool hurries() const noexcept override { return !of_.is_awaited(); }
  void cancel() { running_.cancel(); }
  // Needs the GIL and releases it while blocked. Returns the outcome, or nothing on timeout.
  std::optional<io_result> wait(std::chrono::nanoseconds time);
  // Waits until the flight is no longer between its steps, or the time has passed. Needs the GIL, as above.
  void wait_between(std::chrono::nanoseconds time);
  void step_has_changed();

 private:
  ~prelude() override = default;
  flight& of_;
  operation running_;
  io_result outcome_;  // set when the step has completed
  std::mutex lock_;
  std::condition_variable changed_;
};

}  // namespace penstock::python
