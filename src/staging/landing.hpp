// Pinned memory for pieces of device tensors in transit to or from a connection. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "staging/lanes.hpp"
#include "staging/link.hpp"
#include "staging/slab_pool.hpp"
#include "staging/work.hpp"

namespace penstock::staging {

class landing {
 public:
  static constexpr std::size_t piece_bytes = 4 * mib;  // two 1 MiB copies are 6 us apart, a quarter of their time
  // Per kind of device. Sending and receiving have separate landings, so neither ever waits for the other.
  static constexpr std::size_t most_bytes = 64 * mib;

  // Memory for one piece. The last owner returns it to the pool, on any thread.
  using lease = std::shared_ptr<std::byte>;

  // A caller that found no memory. Runs once, on a lane, when memory has been returned, and may try again. Its owner must keep it alive
  // until then, or until forget().
  struct waiter : work {
    work_list list;
  };

  // lanes: the worker threads that run the waiters.
  landing(sys::kernel& kernel, lanes& lanes);
  landing(const landing&) = delete;
  landing& operator=(const landing&) = delete;

  // Returns null if no memory is free; `again` then runs later. Errors: those of slab_pool::try_take.
  result<lease> take(const link& via, waiter& again);
  // Returns false if the waiter was not waiting, because it is running or has run.
  bool forget(waiter& waiting) noexcept;
  // Does the same as slab_pool::trim().
  std::size_t trim() { return cuda_pool_.trim() + host_pool_.trim(); }
  [[nodiscard]] std::size_t pinned_bytes() const noexcept { return cuda_budget_.used_bytes.load() + host_budget_.used_bytes.load(); }

 private:
  void give_back(slab_pool& pool, const slab& used) noexcept;

  lanes& lanes_;
  pinned_budget cuda_budget_{most_bytes};
  pinned_budget host_budget_{most_bytes};
  slab_pool cuda_pool_;
  slab_pool host_pool_;
  std::mutex lock_;  // guards the members below
  std::vector<waiter*> waiting_;
};

}  // namespace penstock::staging
