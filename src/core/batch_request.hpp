// Several requests submitted at once. Small ones on one device travel together, many in a slab; large ones run as requests of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "core/admission.hpp"
#include "core/gather.hpp"
#include "core/memory_map.hpp"
#include "core/mount.hpp"
#include "core/pending.hpp"
#include "path/data_path.hpp"

namespace penstock::core {

class batch_request final : public pending, public path::job_owner {
 public:
  // Begins them. files[i] is the file of requests[i]; null: it was closed. Takes the callbacks for good with what it returns; where it
  // throws (bad_alloc), nothing was taken. The caller's reference.
  static pending* begin(core::runtime& with, std::span<const io_request> requests, const std::vector<std::shared_ptr<file_core>>& files,
                        const io_options& options, io_callback& callback, item_callback& each);

  // Works on what no lane has taken yet: who waits for all of it anyway is quicker than a lane that has to be woken.
  void help();

  void end_queued() override;
  void cancel_all();

  void finished(path::job& ended, std::uint64_t bytes, status error) override;
  void hand_over(path::job& refused, status why) override;
  [[nodiscard]] status stopped() const override { return stop_reason(); }

 private:
  batch_request(std::shared_ptr<core::runtime> with, std::size_t count);
  ~batch_request() override;
  void start(std::span<const io_request> requests, const std::vector<std::shared_ptr<file_core>>& files,
             const io_options& options) noexcept;
  struct group;
  // What the batch has on one file system.
  struct share {
    mount* on = nullptr;
    path::job_queues queues;
    staging::work* first = nullptr;  // jobs, linked by next_work
    staging::work* last = nullptr;
    std::size_t count = 0;
  };

  status add(const io_request& asked, const std::shared_ptr<file_core>& file, const io_options& options, std::uint32_t index);
  void ask_residency();
  void add_range(group& to, const path::gather_range& range);
  group& group_for(share& on, const staging::place& place, bool is_write);
  share& share_on(mount& on);
  status locate(admission& admitted, const io_options& options);
  status start_single(const io_options& options, std::uint32_t index);
  void item_ended(std::uint32_t index, io_result outcome) noexcept;
  void ended(std::uint32_t count) noexcept;

  std::vector<admission> admitted_;
  std::list<share> shares_;
  std::vector<group> groups_;
  std::list<path::job> jobs_;
  std::vector<pending*> singles_;
  item_callback each_;
  std::size_t ranges_per_job_ = 1;
  staging::link* settled_ = nullptr;  // whose default stream was waited for last, and what came of it
  status settled_problem_;
  seen_allocation seen_;                     // by start()
  std::atomic<std::uint64_t> remaining_{1};  // requests, and one while start() runs
};

}  // namespace penstock::core
