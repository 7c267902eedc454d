// Pinned memory through which tensors of devices pass on their way to or from a connection, a piece at a time. Thread-safe.
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
  static constexpr std::size_t piece_bytes = 4 * mib;  // two copies of 1 MiB are 6 us apart, a quarter of their time
  // Of each kind of device: what is sent and what is received have landings of their own, so that neither ever waits for the other.
  static constexpr std::size_t most_bytes = 64 * mib;

  // Memory for one piece, which goes back with its last holder, on whichever thread that is.
  using lease = std::shared_ptr<std::byte>;

  // Who found none. Run on a lane, once, when some has come back: it may try again. Its owner keeps it until then, or until forget().
  struct waiter : work {
    work_list list;
  };

  // lanes: that run waiters.
  landing(sys::kernel& kernel, lanes& lanes);
  landing(const landing&) = delete;
  landing& operator=(const landing&) = delete;

  // Null: there is none now, and again will be run. Errors: of slab_pool::try_take.
  result<lease> take(const link& via, waiter& again);
  // False: it was not waiting, and runs or has run.
  bool forget(waiter& waiting) noexcept;
  // As slab_pool::trim().
  std::size_t trim() { return cuda_pool_.trim() + host_pool_.trim(); }
  [[nodiscard]] std::size_t pinned_bytes() const noexcept { return cuda_budget_.used_bytes.load() + host_budget_.used_bytes.load(); }

 private:
  void give_back(slab_pool& pool, const slab& used) noexcept;

  lanes& lanes_;
  pinned_budget cuda_budget_{most_bytes};
  pinned_budget host_budget_{most_bytes};
  slab_pool cuda_pool_;
  slab_pool host_pool_;
  std::mutex lock_;  // guards what follows
  std::vector<waiter*> waiting_;
};

}  // namespace penstock::staging
