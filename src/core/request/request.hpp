// One read or write in flight: its jobs, the bytes transferred so far, and the first error. A long request is processed section by section,
// with jobs for two sections at a time, so that its memory use does not grow with its length.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "base/spin_lock.hpp"
#include "core/operation.hpp"
#include "core/request/admission.hpp"
#include "core/request/decide.hpp"
#include "path/data_path.hpp"

namespace penstock::core {

class request final : public operation, public path::job_owner {
 public:
  // row: where to put the bytes of a read into a device, instead of the admitted memory. Such a request represents other requests, which
  // are listed and counted separately.
  request(std::shared_ptr<core::runtime> with, admission admitted, const io_options& options, std::vector<path::row_part> row = {});

  // Receives the outcome, instead of completing alone. Used by the batch that contains this request.
  using on_end = std::function<void(const io_result&)>;
  void set_on_end(on_end told) { on_end_ = std::move(told); }
  // Called on any thread with the number of bytes from the start that have been transferred. Never called after the outcome. Must not
  // throw.
  using on_progress = std::function<void(std::uint64_t)>;
  void set_on_progress(on_progress told) { on_progress_ = std::move(told); }

  // Runs the request on the lanes, or completes it with an error if it cannot be planned.
  void begin() noexcept;
  // The steps of begin(). plan() plans the first section. Call start() if it succeeds, otherwise fail().
  status plan(const cutting& how);
  // The pieces of the first section. Valid before start().
  [[nodiscard]] std::span<const planned_piece> pieces() const noexcept { return sections_[0].pieces; }
  // Runs the request. alone: the first section runs only on the calling thread, which must be about to wait.
  void start(bool alone) noexcept;
  // Runs pieces that no lane has taken yet on the calling thread.
  void help();
  // Completes a request that has not started.
  void fail(status why) noexcept;

  void end_queued() override;
  staging::lanes* lanes_without_threads() noexcept override { return queues_.lanes->without_threads() ? queues_.lanes : nullptr; }
  void finished(path::job& ended, std::uint64_t bytes, status error) override;
  void hand_over(path::job& refused, status why) override;
  void did_without(const path::job& carried, const status& why) override;
  void begins(path::job& item) noexcept override;
  void passed(path::job& item) noexcept override;
  [[nodiscard]] status stopped() const override { return stop_reason(); }

 private:
  // A part of the range. All its jobs exist at the same time.
  struct section {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    bool past_size = false;
    std::vector<planned_piece> pieces;
    std::unique_ptr<path::job[]> jobs;  // as planned
    std::size_t job_count = 0;
    // Writes that wait for earlier ones, because more at once would only evict each other from the CPU's cache. Guarded by lock_.
    std::span<path::job> held;
    std::list<path::job> later_jobs;       // from hand_over()
    std::atomic<std::uint32_t> remaining;  // jobs, plus one during launch()
    bool over = false;
  };
  struct planning_work final : staging::work {
    bool run() override;
    request* owner = nullptr;
  };

  ~request() override = default;
  void fill(path::job& target, const planned_piece& piece, std::uint32_t part) noexcept;
  status plan_section(section& next);
  void launch(section& next, bool alone) noexcept;
  void plan_more() noexcept;
  template <class Jobs>
  void dispatch(Jobs& jobs) noexcept;
  [[nodiscard]] std::size_t most_writes_at_once() const noexcept;
  template <class Jobs>
  void begin_jobs(Jobs& jobs) noexcept;
  template <class Jobs>
  void queue(Jobs& jobs) noexcept;
  void end_jobs();
  void note(path::job& ended, std::uint64_t bytes, status error) noexcept;
  void run_next_held(section& of) noexcept;
  void job_ended(section& of) noexcept;
  void finish() noexcept;

  // --- with lock_ held
  [[nodiscard]] bool claim_planning() noexcept;
  [[nodiscard]] bool is_over() noexcept;
  void fold(section& ended) noexcept;
  void note_error(std::uint64_t offset, status error) noexcept;

  admission admitted_;
  const io_options options_;
  cutting how_;
  std::uint32_t neighbours_ = 0;  // how many neighbours' links it may also use
  path::job_queues queues_;
  staging::work_list held_by_file_;    // jobs held back by the file's rate limit
  staging::work_list held_by_engine_;  // jobs held back by the engine's rate limit
  on_end on_end_;
  on_progress on_progress_;
  const std::vector<path::row_part> row_;
  std::array<section, 2> sections_;
  std::uint64_t cursor_;  // start of the next section; owned by the planning thread
  planning_work planning_work_;

  spin_lock lock_;           // guards the members below
  std::size_t planned_ = 0;  // sections
  std::size_t folded_ = 0;   // sections whose outcome is in the total, in order
  bool planning_ = false;
  bool past_size_ = false;  // set by the last section planned
  unsigned telling_ = 0;    // threads that are reporting progress
  bool no_more_ = false;    // nothing further is planned, because the file ends or an error ends the request
  bool finished_ = false;
  std::uint64_t bytes_done_ = 0;
  std::uint64_t direct_bytes_ = 0;
  std::uint64_t gap_at_ = none;
  std::uint64_t first_error_at_ = none;
  status first_error_;
  static constexpr std::uint64_t none = ~std::uint64_t{0};
};

}  // namespace penstock::core
