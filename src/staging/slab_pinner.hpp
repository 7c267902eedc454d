// Pins staging memory for the disk lanes of one file system. A lane that pinned it itself could neither start nor finish reads meanwhile,
// and a virtual machine may take 3 ms per MiB to provide memory. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include "staging/disk_lanes.hpp"
#include "staging/slab_pool.hpp"
#include "staging/waiting_lanes.hpp"
#include "staging/work.hpp"

namespace penstock::staging {

class threaded_pinner final : public slab_pinner {
 public:
  // by: pins the memory, and must end before this object does. lanes: waits for it.
  threaded_pinner(waiting_lanes& by, disk_lanes& lanes) noexcept;

  // Pins memory for one slab of at least so many bytes (slab_pool::pin_more) on another thread, then wakes the lanes. Ignored while
  // slab_pool::most_pinning such requests are in progress. Does not block, unless no thread can be started. session: must outlive the call.
  void ask(slab_pool& pool, std::size_t bytes, device::session& session) override;

 private:
  struct pinning final : work {
    bool run() override;
    threaded_pinner* of = nullptr;
    slab_pool* pool = nullptr;
    device::session* session = nullptr;
    std::size_t bytes = 0;
    std::atomic<bool> in_progress{false};
  };

  waiting_lanes& by_;
  disk_lanes& lanes_;
  work_list works_;
  std::array<pinning, slab_pool::most_pinning> each_;
};

}  // namespace penstock::staging
