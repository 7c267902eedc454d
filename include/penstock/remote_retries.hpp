// Requests to servers that were retried, for programs that report them to their users.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <vector>

#include "penstock/status.hpp"

namespace penstock {

struct remote_retry {
  int status = 0;       // HTTP status of the response; 0: no response
  errc why = errc::io;  // timed_out: no response in time
  std::chrono::milliseconds pause{0};
  unsigned attempt = 0;  // the attempt that failed, from 1
  unsigned attempts = 0;
};

// For remote_options::retries. Keeps the latest 256 retries until take() returns them. Thread-safe.
class remote_retries {
 public:
  void add(const remote_retry& one) noexcept {
    const std::lock_guard guard(lock_);
    kept_[(first_ + count_) % kept_.size()] = one;
    count_ < kept_.size() ? ++count_ : first_ = (first_ + 1) % kept_.size();
  }
  // Returns the retries, oldest first, and clears the list.
  [[nodiscard]] std::vector<remote_retry> take() {
    const std::lock_guard guard(lock_);
    std::vector<remote_retry> made;
    made.reserve(count_);
    for (std::size_t i = 0; i < count_; ++i) made.push_back(kept_[(first_ + i) % kept_.size()]);
    first_ = count_ = 0;
    return made;
  }

 private:
  std::mutex lock_;  // guards the members below
  std::array<remote_retry, 256> kept_{};
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace penstock
