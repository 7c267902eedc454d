#include "core/request/row.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/no_memory.hpp"
#include "core/mount.hpp"
#include "core/planner.hpp"
#include "core/request/decide.hpp"
#include "core/request/request.hpp"

namespace penstock::core {

namespace {

bool wants_to_spare_cpu(runtime& with, const io_options& options) {
  const auto prefer = with.preference_of(options);
  return prefer == preference::cpu || (prefer == preference::automatic && (with.few_cores() || with.has_busy_cores()));
}

// Returns true if the file has pinned pages, which only a read outside of a row can use.
bool is_pinned(runtime& with, const admission& item) {
  if (with.pinned_pages().empty() || item.what().length < least_registered_bytes) return false;
  auto& from = item.file().source();
  return !from.facts().in_memory && with.pinned_pages().holds(from);
}

// Returns how many bytes of a read have been transferred if `bytes` bytes starting at offset `from` have been.
std::uint64_t moved_bytes(const transfer& of, std::uint64_t from, std::uint64_t bytes) {
  const auto before = of.offset - from;
  return bytes > before ? std::min(bytes - before, of.length) : 0;
}

}  // namespace

// --- finding a row

row_finder::row_finder(runtime& with, const io_options& options) : with_(with), options_(options), any_(!with.forced(options)) {}

bool row_finder::suits(const admission& item) const noexcept {
  if (!any_ || item.what().is_write || !item.place().on_device() || is_pinned(with_, item)) return false;
  return item.place().emulated() || item.what().length < least_mapped_bytes || !wants_to_spare_cpu(with_, options_);
}

bool row_finder::continues(const admission& item, std::uint32_t index) const noexcept {
  if (count_ == 0 || index != first_ + count_ || file_ != &item.file() || place_.via != item.place().via) return false;
  return item.what().offset >= ends_ && item.what().offset - ends_ <= most_gap_bytes;
}

void row_finder::add(const admission& item, std::uint32_t index) noexcept {
  if (count_++ == 0) {
    file_ = &item.file();
    place_ = item.place();
    begins_ = item.what().offset;
    first_ = index;
  }
  ends_ = item.what().offset + item.what().length;
}

bool row_finder::worth_it() {
  if (count_ < 2 || ends_ - begins_ < least_bytes) return false;
  const auto* const better = carrier_of_whole(with_, *file_, place_, begins_, ends_ - begins_, options_);
  return better == nullptr || better->whole_blocks;  // tensors are rarely aligned to blocks
}

// --- one row

result<request*> row::make(const io_options& options, std::shared_ptr<file_core> file) {
  const auto& front = items_.front().what();
  const auto& back = items_.back().what();
  std::vector<path::row_part> parts;
  parts.reserve(items_.size());
  for (const auto& each : items_) {
    const auto& what = each.what();
    auto* const last = parts.empty() ? nullptr : &parts.back();
    if (last != nullptr && last->offset + last->length == what.offset && last->memory + last->length == what.memory) {
      last->length += what.length;
    } else {
      parts.push_back({what.offset, what.length, what.memory});
    }
  }
  options_ = options;
  file_ = std::move(file);
  admission admitted;
  const transfer whole{nullptr, back.offset + back.length - front.offset, front.offset, false};
  if (auto refused = admitted.enter(with_, *file_, whole, file_); !refused.ok()) return refused;
  admitted.place_at(items_.front().place());
  admitted.decide(options_, asker::batch);
  auto* made = new request(with_.shared_from_this(), std::move(admitted), options_, std::move(parts));
  made->set_on_progress([this](std::uint64_t bytes) { moved(bytes); });
  made->set_on_end([this](const io_result& outcome) { ended(outcome); });
  return made;
}

std::uint64_t row::moved_of(const admission& item, std::uint64_t bytes) const noexcept {
  return moved_bytes(item.what(), items_.front().what().offset, bytes);
}

// Completes the requests whose bytes have arrived.
void row::moved(std::uint64_t bytes) noexcept {
  std::size_t from = 0;
  std::size_t to = 0;
  {
    const std::lock_guard guard(lock_);
    from = ended_;
    // The last one completes with the request, which is still running here.
    const auto all_but_last = items_.first(items_.size() - 1);
    const auto is_there = [&](const admission& item) { return moved_of(item, bytes) == item.what().length; };
    const auto missing = std::partition_point(all_but_last.begin() + static_cast<std::ptrdiff_t>(from), all_but_last.end(), is_there);
    to = static_cast<std::size_t>(missing - all_but_last.begin());
    ended_ = to;
  }
  if (from < to) of_.items_moved(first_ + static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(to - from));
}

// Reruns the requests that an error has left incomplete.
void row::ended(const io_result& outcome) {
  const auto code = outcome.error.code();
  const bool again = !outcome.ok() && code != errc::cancelled && code != errc::timed_out;
  auto& of = of_;
  const auto items = items_;
  const auto first = first_;
  const auto begins = items.front().what().offset;
  std::size_t from = 0;
  std::size_t to = 0;
  {
    const std::lock_guard guard(lock_);
    from = to = ended_;
    while (to < items.size() && (!again || moved_of(items[to], outcome.bytes_done) == items[to].what().length)) ++to;
    ended_ = to;
  }
  const bool any_left = to < items.size();
  if (any_left) with_.stats().count_fallback(with_.paths().base(true), outcome.error.message());
  // Once the last item has completed, this object is destroyed, and the batch may be.
  for (; from < to; ++from) {
    const auto& what = items[from].what();
    const auto moved = moved_bytes(what, begins, outcome.bytes_done);
    of.item_ended(first + static_cast<std::uint32_t>(from), {moved, moved == what.length ? status() : outcome.error});
  }
  // Not on this thread, which may be the one that handles copies: planning calls the file system.
  if (any_left) file_->mount().lanes().push_urgent(again_, *this);
}

bool row::run() {
  auto& of = of_;
  const auto file = file_;
  const auto options = options_;
  const auto end = first_ + static_cast<std::uint32_t>(items_.size());
  for (auto index = first_ + static_cast<std::uint32_t>(ended_); index < end; ++index) of.go_alone(options, file, index);
  return true;
}

}  // namespace penstock::core
