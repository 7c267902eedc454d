#include "core/request/batch_request.hpp"

#include <cassert>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/mount.hpp"
#include "core/request/request.hpp"

namespace penstock::core {

operation* batch_request::begin(core::runtime& with, std::span<const io_request> requests, const io_options& options, io_callback& callback,
                                item_callback& each) {
  auto* made = new batch_request(with.shared_from_this(), requests);
  made->each_ = std::move(each);  // from here on, outcomes are reported through the callbacks
  made->set_deadline(options.deadline);
  made->show_as(made->runtime().shown_range("batch", requests.size(), {}));
  made->set_callback(std::move(callback));
  made->retain();
  made->start(requests, options);
  return made;
}

batch_request::batch_request(std::shared_ptr<core::runtime> with, std::span<const io_request> requests)
    : sender(std::move(with)), admitted_(requests.size()) {
  items_.resize(requests.size());
  if (batch_copies::any(requests)) copies_.emplace(runtime(), *this, requests);
}

batch_request::~batch_request() = default;

void batch_request::end_cancelled() {
  end_queued();
  for (std::size_t i = 0;; ++i) {
    timed_ref<request> part;
    {
      const std::lock_guard guard(parts_lock_);
      if (i == parts_.size()) return;
      part = parts_[i];
    }
    part->cancel();
  }
}

void batch_request::end_queued() {
  for (auto& each : shipments_) each.end_queued();
}

void batch_request::start(std::span<const io_request> requests, const io_options& options) noexcept {
  remaining_.fetch_add(requests.size());
  admission::list(runtime(), admitted_);
  row_finder found(runtime(), options);
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    auto problem = or_no_memory([&] { return add(requests[i], options, i, found); });
    if (problem.ok()) continue;
    item_ended(i, {0, std::move(problem)});
    if (copies_ && copies_->is_copy(i)) copies_->refused(i);
  }
  end_row(options, found);
  (void)watch_deadline();  // if nothing watches the deadline, each load still checks it
  for (auto& each : shipments_) each.flush();
  if (!stop_reason().ok()) end_queued();
  ended(1);
}

void batch_request::help() {
  for (auto& each : shipments_) {
    while (!runtime().forked() && !done() && each.help()) runtime().feeders().pump();
  }
}

// Reports an error as the outcome of this request.
status batch_request::add(const io_request& asked, const io_options& options, std::uint32_t index, row_finder& found) {
  if (auto refused = enter(asked, options, index); !refused.ok()) return refused;
  auto& admitted = admitted_[index];
  if (asked.length == 0) {
    item_ended(index, {});
    return {};
  }
  if (copies_) copies_->located(index, admitted);
  if (copies_ && copies_->is_copy(index)) {
    admitted.show();
    copies_->begin(index, admitted, options);
    return {};
  }
  if (!found.continues(admitted, index)) end_row(options, found);
  if (!found.suits(admitted)) return send_off(options, index);
  found.add(admitted, index);
  return {};
}

// Admits and locates a request.
status batch_request::enter(const io_request& asked, const io_options& options, std::uint32_t index) {
  if (asked.target == nullptr || asked.target->core() == nullptr) return {errc::closed, "the file of this request is closed"};
  const transfer what{static_cast<std::byte*>(asked.memory), asked.length, static_cast<std::uint64_t>(asked.offset), asked.is_write};
  const auto& file = asked.target->core();
  if (files_.empty() || files_.back() != file) files_.push_back(file);
  auto& admitted = admitted_[index];
  if (auto refused = admitted.enter(runtime(), *file, what); !refused.ok()) return refused;
  auto wrong = admitted.check(options);
  if (wrong.ok() && asked.length > 0 && asked.copy_of && !copies_->is_copy(index))
    wrong = {errc::invalid_argument,
             fmt::format("copy_of is {}, but that request is not an earlier read of the same range", *asked.copy_of)};
  if (wrong.ok()) wrong = file->mount().lanes(options.priority).ready();
  if (wrong.ok()) wrong = locate(admitted, options);
  if (wrong.ok() && asked.length > 0) admitted.decide(options, asker::batch);
  if (!wrong.ok()) return wrong.with_context(fmt::format("request {} of the batch: {}", index, file->name()));
  return {};
}

// Starts a located request, alone or together with other small ones.
status batch_request::send_off(const io_options& options, std::uint32_t index) {
  auto& admitted = admitted_[index];
  auto& file = admitted.file();
  if (admitted.route().by == carrier::lanes || (file.is_limited() && !file.try_pass(admitted.what().length)))
    return start_single(options, file.shared_from_this(), index);
  admitted.show();
  shipment_by(file.mount().collector(options.priority)).add(admitted, index);
  return {};
}

// Starts the requests found so far as a row, if that is worthwhile.
void batch_request::end_row(const io_options& options, row_finder& found) {
  if (found.count() == 0) return;
  const auto first = found.first();
  const auto end = first + found.count();
  bool together = false;
  auto problem = or_no_memory([&]() -> status {
    together = found.worth_it();
    return together ? start_row(options, first, end - first) : status();
  });
  found.clear();
  for (auto index = first; index < end && (!together || !problem.ok()); ++index) {
    auto refused = problem.ok() ? or_no_memory([&] { return send_off(options, index); }) : problem;
    if (!refused.ok()) item_ended(index, {0, std::move(refused)});
  }
}

// Returns an error if no part of the row has started.
status batch_request::start_row(const io_options& options, std::uint32_t first, std::uint32_t count) {
  const auto items = std::span(admitted_).subspan(first, count);
  make_room_for_part();
  auto carrier = rows_.emplace_back(runtime(), *this, items, first).make(options, items.front().file().shared_from_this());
  if (!carrier) return carrier.error();
  for (auto& each : items) each.show();
  run_part(**carrier);
  return {};
}

void batch_request::go_alone(const io_options& options, const std::shared_ptr<file_core>& file, std::uint32_t index) noexcept {
  auto problem = stop_reason();
  if (problem.ok()) problem = or_no_memory([&] { return start_single(options, file, index); });
  if (!problem.ok()) item_ended(index, {0, std::move(problem)});
}

// Synchronizes with each device's default stream only once.
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
  make_room_for_part();
  admitted_[index].hide(admitted_.front());
  auto* op = new request(runtime().shared_from_this(), std::move(admitted_[index]), options);
  op->set_on_end([this, index](const io_result& outcome) { item_ended(index, outcome); });
  run_part(*op);
  return {};
}

void batch_request::make_room_for_part() {
  const std::lock_guard guard(parts_lock_);
  if (parts_.size() == parts_.capacity()) parts_.reserve(2 * parts_.size() + 1);
}

// The list of parts must have enough capacity. The batch may be destroyed on return.
void batch_request::run_part(request& part) {
  {
    const std::lock_guard guard(parts_lock_);
    parts_.emplace_back(part);
  }
  // A thread that cancels the batch from here on finds the part. An earlier cancellation is visible here.
  if (stop_reason().code() == errc::cancelled) part.cancel();  // the part watches the deadline itself
  part.begin();
}

void batch_request::item_ended(std::uint32_t index, io_result outcome) noexcept {
  admitted_[index].count(outcome);
  items_[index] = std::move(outcome);
  if (!goes_on(index)) copied_on(index);
}

void batch_request::items_moved(std::uint32_t first, std::uint32_t count) noexcept {
  constexpr std::uint32_t most_at_once = 256;  // small enough to stay in the core's cache between the two passes
  for (; count > most_at_once; first += most_at_once, count -= most_at_once) few_moved(first, most_at_once);
  few_moved(first, count);
}

void batch_request::few_moved(std::uint32_t first, std::uint32_t count) noexcept {
  const auto together = std::span(admitted_).subspan(first, count);
  admission::count_moved(together);
  for (auto i = first; i < first + count; ++i) items_[i] = {admitted_[i].what().length, {}};
  if (copies_) {
    for (auto i = first; i < first + count; ++i) {
      if (!goes_on(i)) copied_on(i);
    }
    return;
  }
  if (each_) {
    for (auto i = first; i < first + count; ++i) each_(i, items_[i]);
  }
  admission::let_go(together);
  ended(count);
}

void batch_request::copied_on(std::uint32_t index) noexcept {
  tell(index);
  ended(1);
}

void batch_request::carried(std::span<path::gather_range> items) noexcept {
  std::size_t told = 0;
  for (auto& range : items) {
    items_[range.index] = {range.moved, std::move(range.error)};
    if (goes_on(range.index)) continue;
    tell(range.index);
    ++told;
  }
  if (told > 0) ended(told);
}

void batch_request::tell(std::uint32_t index) noexcept {
  if (each_) each_(index, items_[index]);
  admitted_[index].let_go();
}

void batch_request::ended(std::size_t count) noexcept {
  const auto before = remaining_.fetch_sub(count, std::memory_order_acq_rel);
  assert(before >= count);
  if (before != count) return;
  if (!admitted_.empty()) admitted_.front().unlist();
  io_result total;
  for (const auto& item : items_) {
    total.bytes_done += item.bytes_done;
    total.direct_bytes += item.direct_bytes;
    if (total.ok()) total.error = item.error;
  }
  complete(std::move(total));
}

}  // namespace penstock::core
