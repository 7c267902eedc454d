// A slab in use, and a function that waits for one.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "staging/feeder.hpp"
#include "staging/lanes.hpp"
#include "staging/link.hpp"
#include "staging/slab_pool.hpp"

namespace penstock::staging {

// Owns a slab and returns it to its pool on destruction. For one thread at a time.
class lent_slab {
 public:
  lent_slab() noexcept = default;
  lent_slab(slab_pool& pool, const slab& taken) noexcept : pool_(&pool), slab_(taken) {}
  lent_slab(lent_slab&& other) noexcept : pool_(other.pool_), slab_(other.release()) {}
  lent_slab& operator=(lent_slab&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(slab_, other.slab_);
    return *this;
  }
  ~lent_slab() { give_back(); }

  explicit operator bool() const noexcept { return static_cast<bool>(slab_); }
  [[nodiscard]] std::byte* data() const noexcept { return slab_.data; }
  [[nodiscard]] std::size_t size() const noexcept { return slab_.size; }
  void give_back() noexcept {
    if (slab_) pool_->give_back(release());
  }
  // Gives up ownership. The caller must return the slab.
  [[nodiscard]] slab release() noexcept { return std::exchange(slab_, {}); }

 private:
  slab_pool* pool_ = nullptr;
  slab slab_;
};

// Blocks until a link has a slab of at least `bytes`. While it waits, it does work that would otherwise delay the return of slabs: it runs
// urgent work items of the lanes and pumps copies in flight. stopped: called before each sleep; an error from it ends the wait. Errors:
// that one, and those of slab_pool::try_take.
result<lent_slab> wait_for_slab(const link& via, std::size_t bytes, lanes& helped, feeders& copies, const std::function<status()>& stopped,
                                slab_user user = slab_user::cpu);

}  // namespace penstock::staging
