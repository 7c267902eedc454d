#include "core/batch_request.hpp"

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/mount.hpp"
#include "core/request.hpp"

namespace penstock::core {

operation* batch_request::begin(core::runtime& with, std::span<const io_request> requests, const io_options& options, io_callback& callback,
                                item_callback& each) {
  auto* made = new batch_request(with.shared_from_this(), requests.size());
  made->each_ = std::move(each);  // from here on their ends are told by calling back
  made->set_deadline(options.deadline);
  made->set_callback(std::move(callback));
  made->retain();
  made->start(requests, options);
  return made;
}

batch_request::~batch_request() {
  for (auto* single : singles_) single->release();
}

void batch_request::cancel_all() {
  cancel();
  for (auto* single : singles_) single->cancel();
}

void batch_request::end_queued() {
  for (auto& each : shipments_) each.end_queued();
}

void batch_request::start(std::span<const io_request> requests, const io_options& options) noexcept {
  remaining_.fetch_add(requests.size());
  admission::list(runtime(), admitted_);
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    auto problem = or_no_memory([&] { return add(requests[i], options, i); });
    if (!problem.ok()) item_ended(i, {0, std::move(problem)});
  }
  (void)watch_deadline();  // one that nobody can watch is asked for by each load all the same
  for (auto& each : shipments_) each.flush();
  if (!stop_reason().ok()) end_queued();
  ended(1);
}

void batch_request::help() {
  for (auto& each : shipments_) {
    while (!runtime().forked() && !done() && each.help()) runtime().feeders().pump();
  }
}

// An error is the outcome of this request.
status batch_request::add(const io_request& asked, const io_options& options, std::uint32_t index) {
  if (asked.target == nullptr || asked.target->core() == nullptr) return {errc::closed, "the file of this request is closed"};
  const transfer what{static_cast<std::byte*>(asked.memory), asked.length, static_cast<std::uint64_t>(asked.offset), asked.is_write};
  const auto& file = asked.target->core();
  if (files_.empty() || files_.back() != file) files_.push_back(file);
  auto& admitted = admitted_[index];
  if (auto refused = admitted.enter(runtime(), *file, what); !refused.ok()) return refused;
  auto wrong = admitted.check(options);
  if (wrong.ok()) wrong = file->mount().lanes().ready();
  if (wrong.ok()) wrong = locate(admitted, options);
  if (!wrong.ok()) return wrong.with_context(fmt::format("request {} of the batch: {}", index, file->name()));
  if (asked.length == 0) {
    item_ended(index, {});
    return {};
  }
  if (asked.length > small_request_bytes || runtime().forced(options)) return start_single(options, file, index);
  admitted.show();
  shipment_by(file->mount().collector()).add(admitted, index);
  return {};
}

// The default stream of a device is waited for once.
status batch_request::locate(admission& admitted, const io_options& options) {
  if (auto problem = admitted.locate(&seen_); !problem.ok()) return problem;
  if (!admitted.waits_for_default_stream(options)) return {};
  if (auto* const link = admitted.place().via; settled_ != link) {
    settled_problem_ = link->session().synchronize(nullptr);
    settled_ = link;
  }
  return settled_problem_;
}

shipment& batch_request::shipment_by(collector& by) {
  for (auto& known : shipments_) {
    if (&known.by() == &by) return known;
  }
  return shipments_.emplace_back(by, *this);
}

status batch_request::start_single(const io_options& options, const std::shared_ptr<file_core>& file, std::uint32_t index) {
  admitted_[index].keep(file);  // it may outlive this
  singles_.reserve(admitted_.size());
  auto* op = new request(runtime().shared_from_this(), std::move(admitted_[index]), options);
  op->set_on_end([this, index](const io_result& outcome) { item_ended(index, outcome); });
  op->retain();
  singles_.push_back(op);
  op->begin();
  return {};
}

void batch_request::item_ended(std::uint32_t index, io_result outcome) noexcept {
  admitted_[index].count(outcome);
  items_[index] = std::move(outcome);
  tell(index);
  ended(1);
}

void batch_request::carried(std::span<path::gather_range> items) noexcept {
  for (auto& range : items) {
    items_[range.index] = {range.moved, std::move(range.error)};
    tell(range.index);
  }
  ended(items.size());
}

void batch_request::tell(std::uint32_t index) noexcept {
  if (each_) each_(index, items_[index]);
  admitted_[index].let_go();
}

void batch_request::ended(std::size_t count) noexcept {
  if (remaining_.fetch_sub(count, std::memory_order_acq_rel) != count) return;
  if (!admitted_.empty()) admitted_.front().unlist();
  io_result total;
  for (const auto& item : items_) {
    total.bytes_done += item.bytes_done;
    if (total.ok()) total.error = item.error;
  }
  complete(std::move(total));
}

}  // namespace penstock::core
