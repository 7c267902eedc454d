#include "tensors/flow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"
#include "tensors/checks.hpp"

namespace penstock::tensors {

namespace {

constexpr std::uint64_t most_group_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t least_piece_bytes = 4096;
constexpr std::uint64_t least_groups = 4;   // in flight, if there is a limit
constexpr std::uint64_t window_groups = 8;  // in a window: one that is in use, and others that are being read

}  // namespace

void arrival_counter::add(std::size_t memory, std::uint64_t bytes) noexcept {
  if (memory >= counts_.size()) return;  // ranges of a file may have more memories than the layout, whose bytes are counted
  const std::int64_t now = (clock::now() - start_).count();
  counts& mine = counts_[memory];
  mine.bytes.fetch_add(bytes, std::memory_order_relaxed);
  std::int64_t before = mine.last.load(std::memory_order_relaxed);
  while (before < now && !mine.last.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
  }
}

std::vector<load_progress> arrival_counter::seen() const {
  std::vector<load_progress> seen;
  for (const counts& each : counts_) {
    const clock::duration last(each.last.load(std::memory_order_relaxed));
    seen.push_back({each.bytes.load(std::memory_order_relaxed), last});
  }
  return seen;
}

flow::~flow() {
  cancel();
  lock guard(lock_);
  changed_.wait(guard, [this] { return running_.empty() && !is_starting_; });
}

// --- adding

status flow::add(const model_layout& layout, std::span<void* const> memory) {
  {
    const lock guard(lock_);
    if (!items_.empty()) return {errc::invalid_argument, "the flow already has items: create another flow for this layout"};
    if (is_cancelled_) return cancelled_;
    window_ = layout.bytes;
    const auto nothing_added = [this] {
      items_.clear();
      pieces_.clear();
      arrived_.reset();
      window_ = 0;
    };
    try {
      const auto ranges = ranges_of(layout, std::clamp(group_bytes(), least_piece_bytes, most_model_request_bytes));
      if (!ranges) {
        nothing_added();
        return ranges.error();
      }
      arrived_ = std::make_unique<arrival_counter>(memory.size());
      add_tensors(layout, *ranges, add_memory(memory));
    } catch (...) {
      nothing_added();
      throw;
    }
    for (item& each : items_) end_if_read(each);
  }
  start_more();
  return {};
}

result<std::size_t> flow::add(const file& from, std::span<const file_range> ranges, std::span<void* const> memory, io_callback ended) {
  std::size_t number = 0;
  {
    const lock guard(lock_);
    if (is_cancelled_) return cancelled_;
    number = items_.size();
    const std::size_t before = pieces_.size();
    try {
      const memories& into = add_memory(memory);
      for (const file_range& each : ranges) pieces_.push_back({&from, each, number});
      items_.push_back({.first = before, .last = pieces_.size(), .into = &into, .unread = ranges.size()});
    } catch (...) {
      while (pieces_.size() > before) pieces_.pop_back();
      throw;
    }
    items_.back().callback = std::move(ended);
    end_if_read(items_.back());
  }
  start_more();
  return number;
}

const flow::memories& flow::add_memory(std::span<void* const> memory) {
  memories into;
  for (void* const each : memory) into.push_back(static_cast<std::byte*>(each));
  return memories_.emplace_back(std::move(into));
}

void flow::add_tensors(const model_layout& layout, std::span<const model_range> ranges, const memories& into) {
  std::uint64_t turns = 0, end = 0;
  for (const placed_tensor& each : layout.tensors) {
    const std::size_t first = pieces_.size();
    const auto is_its = [&](const model_range& range) {
      return range.tensor.facts == each.tensor.facts && range.place - each.place < each.part.bytes();
    };
    for (; !ranges.empty() && is_its(ranges.front()); ranges = ranges.subspan(1)) {
      const model_range& range = ranges.front();
      pieces_.push_back({&range.tensor.file->source, {range.offset, range.length, range.place}, items_.size()});
    }
    if (each.place < end) turns += window_;
    end = each.place + each.part.bytes();
    items_.push_back({.tensor = each.tensor,
                      .first = first,
                      .last = pieces_.size(),
                      .into = &into,
                      .start = turns + each.place,
                      .end = turns + end,
                      .unread = pieces_.size() - first});
  }
}

// --- starting

std::uint64_t flow::group_bytes() const noexcept {
  if (options_.most_bytes == 0) return ~std::uint64_t{0};
  const std::uint64_t most = std::min(most_group_bytes, options_.most_bytes / least_groups);
  return window_ == 0 ? most : std::min(most, window_ / window_groups);
}

bool flow::has_room_for(const item& next) const noexcept {
  return next.end == 0 || first_held_ == items_.size() || next.end - items_[first_held_].start <= window_;
}

void flow::start_more() noexcept {
  lock guard(lock_);
  if (is_starting_) return;  // the other thread notices the change
  is_starting_ = true;
  for (;;) {
    tell_ended(guard);
    const auto next = next_group();
    if (next == nullptr) {
      if (ending_ == nullptr) break;
      continue;  // there was no memory for the group, so its items end
    }
    guard.unlock();
    start(next);
    guard.lock();
  }
  is_starting_ = false;
  changed_.notify_all();
}

// Returns null if nothing can be started now.
std::shared_ptr<flow::group> flow::next_group() noexcept {
  while (next_ < pieces_.size() && !is_wanted(item_of(next_))) next_ = item_of(next_).last;
  const std::uint64_t most = group_bytes();
  std::size_t last = next_;
  std::uint64_t bytes = 0;
  bool waits_for_room = false;
  for (; last < pieces_.size() && is_wanted(item_of(last)); ++last) {
    const std::uint64_t length = pieces_[last].range.length;
    if (last > next_ && length > most - std::min(bytes, most)) break;
    if (item_of(last).into->size() != item_of(next_).into->size()) break;
    waits_for_room = !has_room_for(item_of(last));
    if (waits_for_room) break;
    bytes += length;
  }
  if (last == next_ || !may_start(bytes)) return nullptr;
  if (waits_for_room && pieces_[next_].item >= wanted_) return nullptr;  // small groups would be slow
  return or_without_memory([&] { return make_group(last, bytes); },
                           [&] {
                             end_all(no_memory());
                             return nullptr;
                           });
}

bool flow::may_start(std::uint64_t bytes) const noexcept {
  const std::uint64_t most = options_.most_bytes;
  return in_flight_ == 0 || most == 0 || (in_flight_ <= most && bytes <= most - in_flight_);
}

std::shared_ptr<flow::group> flow::make_group(std::size_t last, std::uint64_t bytes) {
  auto made = std::make_shared<group>();
  made->first = next_;
  made->last = last;
  made->bytes = bytes;
  const std::size_t count = last - next_, memory_count = item_of(next_).into->size();
  for (std::size_t memory = 0; memory < memory_count; ++memory) {
    for (std::size_t i = next_; i < last; ++i) {
      const piece& each = pieces_[i];
      io_request& request = made->requests.emplace_back();
      request.target = each.from;
      request.memory = (*item_of(i).into)[memory] + each.range.place;
      request.length = each.range.length;
      request.offset = static_cast<std::int64_t>(each.range.offset);
      if (memory > 0) request.copy_of = static_cast<std::uint32_t>(made->requests.size() - 1 - count);
    }
  }
  made->results.resize(made->requests.size());
  running_.push_back(made);
  for (; next_ < last; ++next_) ++item_of(next_).in_flight;
  in_flight_ += bytes;
  return made;
}

// Does not throw: the callbacks are small enough for std::function.
void flow::start(const std::shared_ptr<group>& next) noexcept {
  group& mine = *next;
  batch work = engine_.submit(
      mine.requests, options_.io, [this, &mine](const io_result&) { group_ended(mine); },
      [this, &mine](std::size_t i, const io_result& result) {
        mine.results[i] = result;
        if (arrived_ != nullptr) arrived_->add(i / (mine.last - mine.first), result.bytes_done);
      });
  lock guard(lock_);
  mine.work = std::move(work);
  cancel_unwanted(guard);
}

// --- ending

void flow::group_ended(group& which) noexcept {
  std::shared_ptr<group> gone;  // destroyed after the lock has been released
  {
    lock guard(lock_);
    record(which);
    in_flight_ -= which.bytes;
    tell_ended(guard);
  }
  start_more();
  const lock guard(lock_);  // from here on, the flow may be destroyed as soon as the lock is free
  const auto found = std::ranges::find(running_, &which, &std::shared_ptr<group>::get);
  gone = std::move(*found);
  running_.erase(found);
  changed_.notify_all();
}

void flow::record(const group& which) noexcept {
  const std::size_t count = which.last - which.first;
  for (std::size_t i = which.first; i < which.last; ++i) {
    piece& mine = pieces_[i];
    item& of = items_[mine.item];
    mine.done = mine.range.length;
    for (std::size_t memory = 0; memory < which.results.size() / count; ++memory) {
      const io_result& result = which.results[memory * count + i - which.first];
      mine.done = std::min(mine.done, result.bytes_done);
      if ((result.ok() && result.bytes_done == mine.range.length) || i >= of.failed_piece) continue;
      of.failed_piece = i;
      of.failed = {result.error, memory};
    }
    --of.in_flight;
    --of.unread;
    end_if_read(of);
  }
}

void flow::end_if_read(item& of) noexcept {
  if (of.unread > 0 || of.now != item::state::waiting) return;
  of.now = item::state::ending;
  of.next_ending = std::exchange(ending_, &of);
}

// Ends an item without the pieces that have not been started.
void flow::end_unread(item& of, const status& why) noexcept {
  if (of.now != item::state::waiting) return;
  const std::size_t unread = std::clamp(next_, of.first, of.last);
  if (unread < of.failed_piece && unread < of.last) {
    of.failed_piece = unread;
    of.failed = {why, 0};
  }
  of.unread = of.in_flight;
  end_if_read(of);
}

void flow::end_all(const status& why) noexcept {
  for (item& each : items_) end_unread(each, why);
  next_ = pieces_.size();
}

// Calls the callbacks without the lock.
void flow::tell_ended(lock& guard) noexcept {
  while (item* const each = ending_) {
    ending_ = each->next_ending;
    if (io_callback callback = std::exchange(each->callback, {})) {
      const io_result result = total(*each);
      guard.unlock();
      callback(result);
      callback = {};  // what it refers to may use the flow when it is destroyed
      guard.lock();
    }
    each->now = item::state::ended;
    ++ended_;
  }
  while (first_held_ < items_.size() && items_[first_held_].is_dropped && items_[first_held_].now == item::state::ended) ++first_held_;
  changed_.notify_all();
}

void flow::drop(std::size_t number) noexcept {
  {
    lock guard(lock_);
    if (number >= items_.size()) return;
    items_[number].is_dropped = true;
    end_unread(items_[number], cancelled_);
    tell_ended(guard);
    cancel_unwanted(guard);
  }
  start_more();
}

void flow::cancel() noexcept {
  lock guard(lock_);
  is_cancelled_ = true;
  end_all(cancelled_);
  tell_ended(guard);
  cancel_unwanted(guard);
}

// batch::cancel() may end the batch on this thread, so it is called without the lock.
void flow::cancel_unwanted(lock& guard) noexcept {
  const auto is_next = [this](const std::shared_ptr<group>& each) { return !each->is_cancelled && each->work && is_unwanted(*each); };
  for (auto found = std::ranges::find_if(running_, is_next); found != running_.end(); found = std::ranges::find_if(running_, is_next)) {
    const std::shared_ptr<group> each = *found;
    each->is_cancelled = true;
    guard.unlock();
    each->work->cancel();
    guard.lock();
  }
}

bool flow::is_unwanted(const group& which) const noexcept {
  if (is_cancelled_) return true;
  for (std::size_t i = which.first; i < which.last; i = item_of(i).last) {
    if (!item_of(i).is_dropped) return false;
  }
  return true;
}

// --- waiting

flow::failure flow::take(std::size_t number) {
  lock guard(lock_);
  if (number >= items_.size())
    return {{errc::invalid_argument, fmt::format("the flow has {} items, so item {} does not exist", items_.size(), number)}};
  const item& wanted = items_[number];
  ask_for(number, guard);
  changed_.wait(guard, [&] { return wanted.now == item::state::ended || is_blocked(wanted); });
  return wanted.now == item::state::ended ? outcome(wanted) : failure{named(wanted, blocked())};
}

// Lets a group with this item start even if it is small.
void flow::ask_for(std::size_t number, lock& guard) noexcept {
  if (items_[number].last <= next_ || wanted_ > number) return;
  wanted_ = number + 1;
  guard.unlock();
  start_more();
  guard.lock();
}

bool flow::is_blocked(const item& wanted) const noexcept {
  return wanted.now == item::state::waiting && wanted.last > next_ && !has_room_for(wanted) && !items_[first_held_].is_dropped;
}

status flow::blocked() const {
  const model_tensor& held = items_[first_held_].tensor;
  return {errc::would_block, fmt::format("its memory is in use: drop {} first", tensor_called(held.facts->name))};
}

flow::failure flow::wait() {
  failure first;
  for (std::size_t i = 0; i < size(); ++i) {
    failure each = take(i);
    if (first.error.ok()) first = std::move(each);
  }
  return first;
}

bool flow::wait_for(std::size_t number, std::chrono::nanoseconds timeout) {
  lock guard(lock_);
  if (number >= items_.size()) return false;
  ask_for(number, guard);
  return changed_.wait_for(guard, timeout, [&] { return items_[number].now == item::state::ended; });
}

bool flow::wait_for(std::chrono::nanoseconds timeout) {
  lock guard(lock_);
  return changed_.wait_for(guard, timeout, [&] { return ended_ == items_.size(); });
}

flow::failure flow::outcome(const item& of) const {
  if (of.failed_piece == no_piece) return {};
  const bool is_short = of.failed.error.ok();
  return {named(of, is_short ? status(errc::io, "the file was truncated after it was opened") : of.failed.error), of.failed.memory};
}

status flow::named(const item& of, const status& error) {
  const auto [file, facts] = of.tensor;
  return file == nullptr ? error : error.with_context(fmt::format("{}: {}", file->path, tensor_called(facts->name)));
}

io_result flow::total(const item& of) const noexcept {
  io_result sum{0, of.failed.error};
  for (std::size_t i = of.first; i < of.last; ++i) sum.bytes_done += pieces_[i].done;
  return sum;
}

result<std::vector<io_result>> flow::results(std::size_t number) {
  if (failure failed = take(number); number >= size()) return std::move(failed.error);
  const lock guard(lock_);
  const item& of = items_[number];
  std::vector<io_result> found;
  for (std::size_t i = of.first; i < of.last; ++i) found.push_back({pieces_[i].done, i == of.failed_piece ? of.failed.error : status()});
  return found;
}

std::size_t flow::size() noexcept {
  const lock guard(lock_);
  return items_.size();
}

std::vector<load_progress> flow::progress() {
  const lock guard(lock_);
  return arrived_ == nullptr ? std::vector<load_progress>() : arrived_->seen();
}

}  // namespace penstock::tensors
