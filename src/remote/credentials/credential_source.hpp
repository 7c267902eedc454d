// Keeps credentials and renews them before they expire. Owned by the code that sends requests; thread-safe. One calling thread at a time
// renews them. Other threads continue to use credentials that are still valid, and wait only if there are none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "penstock/status.hpp"
#include "remote/credentials/signature.hpp"

namespace penstock::source::remote {

class credential_source {
 public:
  // early: how long before the expiry to renew. pause: the time until the next attempt if a renewal did not extend the expiry.
  static constexpr std::chrono::minutes early{5};
  static constexpr std::chrono::minutes pause{1};

  // find: looks up credentials and may block. now: the current time on the clock that expires_at uses.
  credential_source(std::function<result<credentials>()> find, std::function<wall_time()> now)
      : find_(std::move(find)), now_(std::move(now)) {}

  // Returns valid credentials. If necessary, looks them up or renews them on this thread first. Blocks as long as find() does. Errors:
  // those of find(), also for threads that waited for another thread's renewal.
  result<std::shared_ptr<const credentials>> current();

  // For threads that must not block. kept() returns valid credentials or null. is_due() returns true if some thread should call current().
  [[nodiscard]] std::shared_ptr<const credentials> kept();
  [[nodiscard]] bool is_due();

  // Reports that a server rejected these credentials as expired or unknown. If they are the kept ones, the next call looks up new ones.
  void refuse(const std::shared_ptr<const credentials>& refused);

 private:
  [[nodiscard]] bool is_valid(wall_time now) const;
  [[nodiscard]] bool is_due(wall_time now) const;
  result<std::shared_ptr<const credentials>> renew(std::unique_lock<std::mutex>& hold);

  const std::function<result<credentials>()> find_;
  const std::function<wall_time()> now_;
  std::mutex mutex_;  // guards the members below; not held while find runs
  std::condition_variable renewed_;
  std::shared_ptr<const credentials> kept_;
  wall_time next_renewal_{};  // of kept_, if it expires
  bool is_renewing_ = false;
  unsigned renewals_ = 0;  // number of renewals; last_problem_ is the outcome of the last one
  status last_problem_;
};

}  // namespace penstock::source::remote
