// Several requests submitted at once. Requests in a row are transferred together, and requests that copy another request's bytes get them
// from it. Of the rest, the collector transfers the small ones, and large ones run as separate requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/spin_lock.hpp"
#include "core/memory_map.hpp"
#include "core/operation.hpp"
#include "core/request/admission.hpp"
#include "core/request/batch_copies.hpp"
#include "core/request/collector.hpp"
#include "core/request/row.hpp"

namespace penstock::core {

class batch_request final : public sender, public part_owner {
 public:
  // Starts the requests. Takes the callbacks when it returns; if it throws (bad_alloc), they are unchanged. The caller owns the reference.
  static operation* begin(core::runtime& with, std::span<const io_request> requests, const io_options& options, io_callback& callback,
                          item_callback& each);

  // Runs work that no lane has taken yet, because a thread that is already waiting is faster than a lane that must be woken.
  void help();

  void end_queued() override;

  [[nodiscard]] admission& admission_of(std::uint32_t index) noexcept override { return admitted_[index]; }
  void carried(std::span<path::gather_range> items) noexcept override;

 private:
  batch_request(std::shared_ptr<core::runtime> with, std::span<const io_request> requests);
  ~batch_request() override;
  void end_cancelled() override;
  void start(std::span<const io_request> requests, const io_options& options) noexcept;
  status add(const io_request& asked, const io_options& options, std::uint32_t index, row_finder& found);
  status enter(const io_request& asked, const io_options& options, std::uint32_t index);
  status locate(admission& admitted, const io_options& options);
  status send_off(const io_options& options, std::uint32_t index);
  void end_row(const io_options& options, row_finder& found);
  status start_row(const io_options& options, std::uint32_t first, std::uint32_t count);
  status start_single(const io_options& options, const std::shared_ptr<file_core>& file, std::uint32_t index);
  void item_ended(std::uint32_t index, io_result outcome) noexcept override;
  void items_moved(std::uint32_t first, std::uint32_t count) noexcept override;
  void few_moved(std::uint32_t first, std::uint32_t count) noexcept;
  void go_alone(const io_options& options, const std::shared_ptr<file_core>& file, std::uint32_t index) noexcept override;
  void copied_on(std::uint32_t index) noexcept override;
  [[nodiscard]] bool goes_on(std::uint32_t index) noexcept { return copies_ && copies_->ended(index, items_[index]); }
  void make_room_for_part();
  void run_part(request& part);
  shipment& shipment_by(collector& by);
  void tell(std::uint32_t index) noexcept;
  void ended(std::size_t count) noexcept;

  std::vector<std::shared_ptr<file_core>> files_;  // must outlive their admissions
  std::vector<admission> admitted_;
  std::list<shipment> shipments_;
  std::list<row> rows_;
  std::optional<batch_copies> copies_;     // only if there are copies
  spin_lock parts_lock_;                   // guards parts_
  std::vector<timed_ref<request>> parts_;  // requests that transfer parts of the batch
  item_callback each_;
  staging::link* settled_ = nullptr;  // the link whose default stream was synchronized last, and the result
  status settled_problem_;
  seen_allocation seen_;                     // used by start()
  std::atomic<std::uint64_t> remaining_{1};  // requests, plus one while start() runs
};

}  // namespace penstock::core
