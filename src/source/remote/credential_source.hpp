// Keeps credentials, and renews them before they expire. Belongs to whoever sends requests; thread-safe. One thread at a time renews, on
// its own time; others go on with what is still valid, and wait only where nothing is.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "penstock/status.hpp"
#include "source/remote/signature.hpp"

namespace penstock::source::remote {

class credential_source {
 public:
  // Renewed so long before they expire; and after a renewal that brought nothing later, tried again so much later.
  static constexpr std::chrono::minutes early{5};
  static constexpr std::chrono::minutes pause{1};

  // find: blocks. now: the time, by the clock that expiry is told by.
  credential_source(std::function<result<credentials>()> find, std::function<wall_time()> now)
      : find_(std::move(find)), now_(std::move(now)) {}

  // What is valid now, if need be found or renewed on this thread. Blocks, for as long as find does. Errors: find's; those who waited for
  // another thread's renewal have its error too.
  result<std::shared_ptr<const credentials>> current();

  // For a thread that may not block: what is valid now, or null; and whether somebody should call current() by now.
  [[nodiscard]] std::shared_ptr<const credentials> kept();
  [[nodiscard]] bool is_due();

  // A server says that they have expired, or are unknown: others are found with the next call, where these are the ones that are kept.
  void refuse(const std::shared_ptr<const credentials>& refused);

 private:
  [[nodiscard]] bool is_valid(wall_time now) const;
  [[nodiscard]] bool is_due(wall_time now) const;
  result<std::shared_ptr<const credentials>> renew(std::unique_lock<std::mutex>& hold);

  const std::function<result<credentials>()> find_;
  const std::function<wall_time()> now_;
  std::mutex mutex_;  // guards all below; not held while find runs
  std::condition_variable renewed_;
  std::shared_ptr<const credentials> kept_;
  wall_time next_renewal_{};  // of kept_, where it expires
  bool is_renewing_ = false;
  unsigned renewals_ = 0;  // so far, and what came of the last one
  status last_problem_;
};

}  // namespace penstock::source::remote
