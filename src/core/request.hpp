// One read or write under way: its jobs, what they have moved, and the first error.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "base/spin_lock.hpp"
#include "core/file_core.hpp"
#include "core/pending.hpp"
#include "core/planner.hpp"
#include "path/data_path.hpp"

namespace penstock::core {

// What a caller asks for, checked.
struct transfer {
  std::byte* memory = nullptr;
  std::uint64_t length = 0;
  std::uint64_t offset = 0;
  bool is_write = false;
};

// The error with the request in front of it, unless it names the file already (a failed copy or a missing slab knows of none). Ok stays ok.
status in_context(const status& error, const transfer& what, const file_core& file);

class request final : public pending, public path::job_owner {
 public:
  // keep_file is set for requests that outlive the call that made them.
  request(std::shared_ptr<engine_core> engine, file_core& file, std::shared_ptr<file_core> keep_file, const transfer& what,
          const path::memory_view& place, bool may_fall_back);

  // Told the outcome instead of completing alone: a batch that this is part of.
  using on_end = std::function<void(const io_result&)>;
  void set_on_end(on_end told) { on_end_ = std::move(told); }

  // Runs the pieces. alone: on the calling thread only, which waits (the caller must be about to wait). Ends at once when there are none.
  void start(const std::vector<planned_piece>& pieces, bool alone);
  // Runs pieces of this request that no lane has taken yet, on the calling thread.
  void help();
  // Ends a request that never started.
  void fail(status why);
  // Says that the file's begin() refused, so that its end() is not called.
  void never_begun() noexcept { begun_ = false; }

  void finished(path::job& ended, std::uint64_t bytes, status error) override;
  void hand_over(path::job& refused, status why) override;
  [[nodiscard]] status stopped() const override { return stop_reason(); }

 private:
  ~request() override = default;
  void fill(path::job& target, const planned_piece& piece);
  void make_waves(const std::vector<planned_piece>& pieces);
  void dispatch(std::span<path::job* const> jobs);
  void run_next_held();
  void ended();
  [[nodiscard]] io_result sum_up();

  file_core& file_;
  std::shared_ptr<file_core> keep_file_;
  const transfer what_;
  const path::memory_view place_;
  const bool may_fall_back_;
  bool begun_ = true;
  on_end on_end_;
  std::atomic<std::uint32_t> remaining_{1};  // jobs, and one while start() runs
  spin_lock lock_;                           // guards what follows
  std::unique_ptr<path::job[]> jobs_;        // as planned
  std::size_t job_count_ = 0;
  std::unique_ptr<path::wave[]> waves_;
  std::span<path::job> held_;         // writes that wait for earlier ones: more at once would only push each other out of the CPU's cache
  std::deque<path::job> later_jobs_;  // from hand_over
  std::uint64_t first_error_at_ = ~std::uint64_t{0};
  status first_error_;
};

}  // namespace penstock::core
