// What is asked of a server again, for a program that tells its user about it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <vector>

#include "penstock/status.hpp"

namespace penstock {

struct remote_retry {
  int status = 0;       // of HTTP, that the server answered with; 0: it answered nothing
  errc why = errc::io;  // timed_out: not in time
  std::chrono::milliseconds pause{0};
  unsigned attempt = 0;  // that failed, from 1
  unsigned attempts = 0;
};

// remote_options::retries. Keeps the last 256 that nobody has taken. Thread-safe.
class remote_retries {
 public:
  void add(const remote_retry& one) noexcept {
    const std::lock_guard guard(lock_);
    kept_[(first_ + count_) % kept_.size()] = one;
    count_ < kept_.size() ? ++count_ : first_ = (first_ + 1) % kept_.size();
  }
  // The oldest first; they are kept no more.
  [[nodiscard]] std::vector<remote_retry> take() {
    const std::lock_guard guard(lock_);
    std::vector<remote_retry> made;
    made.reserve(count_);
    for (std::size_t i = 0; i < count_; ++i) made.push_back(kept_[(first_ + i) % kept_.size()]);
    first_ = count_ = 0;
    return made;
  }

 private:
  std::mutex lock_;  // guards what follows
  std::array<remote_retry, 256> kept_{};
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace penstock
