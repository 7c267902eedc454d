// Several requests submitted at once. Small ones on one device travel together, many in a slab; large ones run as requests of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/file_core.hpp"
#include "core/gather.hpp"
#include "core/pending.hpp"
#include "path/data_path.hpp"

namespace penstock::core {

class batch_request final : public pending, public path::job_owner {
 public:
  batch_request(std::shared_ptr<engine_core> engine, std::size_t count);
  void set_item_callback(item_callback each) { each_ = std::move(each); }

  // files[i] is the file of requests[i]; null: it was closed.
  void start(std::span<const io_request> requests, const std::vector<std::shared_ptr<file_core>>& files, const io_options& options);

  // Works on what no lane has taken yet, until the time given: who waits anyway is quicker than a lane that has to be woken.
  void help(deadline_clock::time_point until);

  void finished(path::job& ended, std::uint64_t bytes, status error) override;
  void hand_over(path::job& refused, status why) override;
  [[nodiscard]] status stopped() const override { return stop_reason(); }
  void cancel_all() noexcept;

 private:
  ~batch_request() override;
  struct entry {
    std::shared_ptr<file_core> file;
    bool is_write = false;
  };
  struct group;

  void add(const io_request& asked, const std::shared_ptr<file_core>& file, const io_options& options, std::uint32_t index);
  void ask_residency();
  void add_range(group& to, const path::gather_range& range);
  group& group_for(const path::memory_view& place, bool is_write);
  void close_group(group& done);
  void start_single(const io_request& asked, const std::shared_ptr<file_core>& file, const path::memory_view& place,
                    const io_options& options, std::uint32_t index);
  void settle(std::uint32_t index, io_result outcome);
  void ended(std::uint32_t count);

  std::vector<entry> entries_;
  std::vector<group> groups_;
  std::deque<path::job> jobs_;
  std::vector<pending*> singles_;
  item_callback each_;
  std::size_t ranges_per_job_ = 1;
  device::session* settled_ = nullptr;  // whose default stream has been waited for
  seen_allocation seen_;                     // by start()
  std::atomic<std::uint64_t> remaining_{1};  // requests, and one while start() runs
};

}  // namespace penstock::core
