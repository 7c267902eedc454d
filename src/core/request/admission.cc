#include "core/request/admission.hpp"

#include <cassert>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/checked.hpp"
#include "base/no_memory.hpp"

namespace penstock::core {

status in_context(const status& error, const transfer& what, const file_core& file) noexcept {
  if (error.ok() || error.message().find(file.name()) != std::string_view::npos) return error;
  return or_without_memory(
      [&] {
        return error.with_context(fmt::format("{} {} at {} of {}", what.is_write ? "write" : "read", what.length,
                                              static_cast<std::int64_t>(what.offset), file.name()));
      },
      [&] { return error; });
}

status check(const transfer& what, const io_options& options) {
  if (what.memory == nullptr && what.length > 0) return {errc::bad_memory, "null pointer"};
  if (options.deadline != deadline_clock::time_point::max() && deadline_clock::now() >= options.deadline) {
    return {errc::timed_out, "the deadline has passed"};
  }
  return check_range(static_cast<std::int64_t>(what.offset), what.length);
}

admission& admission::operator=(admission&& other) noexcept {
  if (other.listed_ == 1) other.unlist();  // if several are listed, the first stays alive for the others
  other.shown_.store(shown::nothing, std::memory_order_relaxed);
  std::swap(with_, other.with_);
  std::swap(file_, other.file_);
  std::swap(kept_, other.kept_);
  std::swap(use_, other.use_);
  std::swap(is_write_, other.is_write_);
  std::swap(located_, other.located_);
  std::swap(route_, other.route_);
  std::swap(what_, other.what_);
  std::swap(place_, other.place_);
  if (listed_ == 0) since_ns_ = other.since_ns_;
  return *this;
}

status admission::enter(runtime& with, file_core& file, const transfer& what, std::shared_ptr<file_core> kept) {
  with_ = &with;
  file_ = &file;
  kept_ = std::move(kept);
  what_ = what;
  is_write_ = what.is_write;
  auto use = file.use(what.is_write);
  if (!use) return use.error();
  use_ = *std::move(use);
  if (what.is_write) file.written();
  if (!with.stats().begun()) with.join_board();
  return {};
}

status admission::locate(seen_allocation* seen) {
  if (what_.length == 0) return {};
  const auto found = with_->memory().place_of(what_.memory, what_.length, seen);
  if (!found) return found.error();
  place_at(*found);
  return {};
}

void admission::place_at(const staging::place& known) noexcept {
  place_ = known;
  located_ = true;
  route_.cache = cache_of(route_.cache, what_.is_write, what_.length, &place_);
  if (shown_.load(std::memory_order_relaxed) != shown::nothing) show();
}

void admission::restate(const transfer& what) noexcept {
  if (listed_ == 0) {
    what_ = what;
  } else {
    sharded_list<admission>::change(*this, [&] { what_ = what; });
  }
}

void admission::decide(const io_options& options, asker who) {
  assert(route_.by == carrier::undecided && (located_ || who != asker::waits));
  what_.priority = options.priority;
  route_ = find_route(*with_, *file_, what_.is_write, what_.offset, what_.length, located_ ? &place_ : nullptr, options, who, what_.memory);
}

status admission::admit(runtime& with, file_core& file, const transfer& what, const io_options& options, asker who,
                        std::shared_ptr<file_core> kept) {
  if (auto refused = enter(with, file, what, std::move(kept)); !refused.ok()) return refused;
  if (auto refused = check(options); !refused.ok()) return refused;
  if (auto refused = locate(); !refused.ok()) return refused;
  if (located_ || who != asker::waits) decide(options, who);
  if (!waits_for_default_stream(options)) return {};
  list();
  return place_.via->session().synchronize(nullptr);
}

void admission::count(io_result& outcome) noexcept {
  if (with_ == nullptr) return;
  if (listed_ == 1) unlist();
  if (!outcome.ok()) outcome.error = in_context(outcome.error, what_, *file_);
  with_->stats().count_request(is_write_, located_ ? device_index(place_) : 0, outcome);
  if (what_.priority == request_priority::background) with_->stats().count_background(1, outcome.bytes_done);
}

void admission::count_moved(std::span<admission> together) noexcept {
  std::uint64_t bytes = 0;
  for (const auto& each : together) bytes += each.what_.length;
  const auto& one = together.front();
  auto& stats = one.with_->stats();
  stats.count_requests(one.is_write_, device_index(one.place_), together.size(), bytes);
  if (one.what_.priority == request_priority::background) stats.count_background(together.size(), bytes);
}

void admission::let_go(std::span<admission> together) noexcept {
  file_uses gone;
  for (auto& each : together) {
    assert(each.listed_ != 1);
    each.shown_.store(shown::nothing, std::memory_order_relaxed);
    gone.add(std::move(each.use_));
  }
}

// --- the list

void admission::list() noexcept {
  if (with_ == nullptr || listed_ > 0) return;
  show();
  list(*with_, {this, 1});
}

void admission::list(runtime& with, std::span<admission> together) noexcept {
  if (together.empty() || with.forked()) return;
  auto& first = together.front();
  if (first.since_ns_ == 0) first.since_ns_ = about_now_ns();
  first.listed_ = static_cast<std::uint32_t>(together.size());
  with.admitted().add(first);
}

void admission::show() noexcept { shown_.store(located_ ? shown::place : shown::request, std::memory_order_release); }

void admission::hide(admission& first) noexcept {
  const auto now = [this] { shown_.store(shown::nothing, std::memory_order_relaxed); };
  first.listed_ == 0 ? now() : sharded_list<admission>::change(first, now);
}

void admission::unlist() noexcept {
  if (listed_ == 0) return;
  sharded_list<admission>::remove(*this);
  listed_ = 0;
}

// A copy made under a shard's lock, where nothing may be allocated. The name is read afterwards, so the copy keeps the file alive.
struct admission::seen {
  std::shared_ptr<file_core> file;
  transfer what;
  std::optional<staging::place> place;
  std::int64_t since_ns;
};

// Adds the admissions that are listed with this one. `to` must have enough capacity.
void admission::tell(std::vector<seen>& to) const {
  for (const auto* each = this; each != this + listed_; ++each) {
    const auto readable = each->shown_.load(std::memory_order_acquire);
    if (readable == shown::nothing) continue;
    to.push_back({each->file_->weak_from_this().lock(), each->what_, readable == shown::place ? std::optional(each->place_) : std::nullopt,
                  since_ns_});
  }
}

std::vector<request_info> admission::under_way(runtime& with) {
  if (with.forked()) return {};
  std::vector<seen> found;
  for (std::size_t shard = 0; shard < sharded_list<admission>::shard_count; ++shard) {
    for (std::size_t missing = 1; missing > 0;) {
      found.reserve(found.size() + missing);
      missing = with.admitted().look_at(shard, [&](const admission* first) -> std::size_t {
        std::size_t count = 0;
        for (const auto* each = first; each != nullptr; each = each->link_.next) count += each->listed_;
        if (count > found.capacity() - found.size()) return count;
        for (const auto* each = first; each != nullptr; each = each->link_.next) each->tell(found);
        return 0;
      });
    }
  }
  std::vector<request_info> told;
  told.reserve(found.size());
  for (const auto& each : found) {
    if (each.file == nullptr) continue;
    told.push_back({each.file->name(), static_cast<std::int64_t>(each.what.offset), each.what.length, each.what.is_write,
                    each.place ? name_of(*each.place) : "", each.since_ns, false, each.what.priority});
  }
  return told;
}

}  // namespace penstock::core
