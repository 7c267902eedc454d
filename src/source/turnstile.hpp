// Where the works wait that begin fills of a far source: they pass on a lane, one after the other and the requests in turn, as long as the
// source wants more fills under way and has memory for them. Thread-safe. Shared by the file, its fills and the lane that is called.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "base/spin_lock.hpp"
#include "staging/lanes.hpp"
#include "staging/slab_pool.hpp"
#include "staging/work.hpp"

namespace penstock::source {

class turnstile final : public staging::work, public std::enable_shared_from_this<turnstile> {
 public:
  // Of an engine's staging memory: what fills of all far sources may use. Each source may use half of what the others leave, so one that
  // does not answer never has it all.
  struct share {
    // told: of the times when works waited for memory alone; outlives this. Null: nobody.
    explicit share(std::uint64_t limit, staging::slab_waits* told = nullptr) noexcept : limit_bytes(limit), waits(told) {}
    const std::uint64_t limit_bytes;
    staging::slab_waits* const waits;
    std::atomic<std::uint64_t> used_bytes{0};
  };
  // at_once: fills, as the source wants them now; asked again and again. Both others outlive the fills. least_piece_bytes: shorter fills
  // cost the source more than they save, though fewer are under way then.
  turnstile(staging::lanes& by, share& of, std::function<unsigned()> at_once, std::uint64_t least_piece_bytes = staging::small_slab_bytes);

  // How long a fill of a request of so many bytes is: short enough that as many are under way at once as the source wants. Where as many
  // are already, or wait, it is as long as may be: shorter ones would only be more to ask for.
  [[nodiscard]] std::uint64_t piece_bytes(std::uint64_t request_bytes) const noexcept;
  [[nodiscard]] unsigned under_way() const noexcept {
    const std::lock_guard guard(lock_);
    return under_way_;
  }

  // Queues works, if there are any. Each begins one fill when it runs, and says so, or ends.
  void push(staging::work_list& list, const staging::work_chain& works) noexcept;
  // Runs one work of the list on the calling thread: of a request that was stopped, so that it only ends. False: there was none.
  bool help(staging::work_list& list);
  // A fill of so many bytes begins, or has ended.
  void began(std::uint64_t bytes) noexcept;
  void ended(std::uint64_t bytes) noexcept;
  // On a lane.
  bool run() override;

 private:
  void call() noexcept;
  [[nodiscard]] bool is_open() const noexcept;
  [[nodiscard]] bool opens() noexcept;  // the same, and tells of waits
  [[nodiscard]] std::uint64_t most_piece_bytes(unsigned at_once) const noexcept;

  staging::lanes& lanes_;
  share& share_;
  const std::function<unsigned()> at_once_;
  const std::uint64_t least_piece_bytes_;
  staging::work_list list_;
  staging::work_queue queue_;
  mutable spin_lock lock_;   // guards what follows
  unsigned under_way_ = 0;   // fills
  std::uint64_t bytes_ = 0;  // of them
  std::int64_t lacks_memory_since_ns_ = 0;
  std::shared_ptr<turnstile> called_;  // this, while a lane is called or at work here
};

}  // namespace penstock::source
