// Many small ranges in one slab: one copy, and one kernel on the device that scatters (or gathers) them.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "path/staged.hpp"

namespace penstock::path {

namespace {

// Where each range lies in the slab: the place that a direct read of whole blocks needs, which for equal file and memory alignment
// also lets the kernel on the device move 16 bytes at a time.
std::uint64_t range_skip(const gather_range& range) { return range.offset % direct_alignment; }
std::uint64_t range_room(const gather_range& range) { return round_up(range_skip(range) + range.length); }

constexpr std::uint64_t cold = ~std::uint64_t{0};  // gather_range::moved of a range that a disk lane reads

// The table of segments lies behind the ranges, in the same slab.
device::segment* table_of(const job& item, const staging::lent_slab& slab) {
  return reinterpret_cast<device::segment*>(slab.data() + slab.size() - item.ranges.size() * sizeof(device::segment));
}

std::size_t fill_table(const job& item, const staging::lent_slab& slab) {
  device::segment* table = table_of(item, slab);
  std::size_t count = 0;
  std::uint64_t at = 0;
  for (const auto& range : item.ranges) {
    std::byte* place = slab.data() + at + range_skip(range);
    at += range_room(range);
    const std::uint64_t bytes = item.is_write ? range.length : range.moved;
    if (bytes == 0 || (item.is_write && !range.error.ok())) continue;
    table[count++] = item.is_write ? device::segment{range.memory, place, bytes} : device::segment{place, range.memory, bytes};
  }
  return count;
}

}  // namespace

std::uint64_t staged::gather_need(const job& item) {
  std::uint64_t bytes = item.ranges.size() * sizeof(device::segment);
  for (const auto& range : item.ranges) bytes += range_room(range);
  return bytes;
}

void staged::start_gather_read(job& item) {
  auto& mine = progress_of(item);
  auto& ring = prepare_ring(item, false);
  const bool rings = !mine.ring_refused && item.queues->disk->available().ok();
  std::uint64_t at = 0;
  for (auto& range : item.ranges) {
    std::byte* place = mine.slab.data() + at + range_skip(range);
    at += range_room(range);
    if (auto stop = item.owner->range_stopped(range); !stop.ok()) {
      range.error = std::move(stop);
    } else if (!rings || !read_later(item, range, place)) {
      auto got = fill_slab(*with_.kernel, *range.file, place, range.length, range.offset, {});
      range.moved = got.bytes_done;
      range.error = std::move(got.error);
    }
  }
  if (ring.pieces.empty()) {
    scatter(item);
    return;
  }
  ring.done = &staged::after_ring<&staged::gather_ring_done>;
  ring.memory = mine.slab.release();
  item.queues->disk->push_ready(ring);
}

// True: the range is not in the page cache, and is queued for a disk lane.
bool staged::read_later(job& item, gather_range& range, std::byte* place) {
  if (range.file->direct_fd < 0 || range.cached == residency::resident) return false;
  if (range.cached == residency::unknown && !is_cold(*with_.kernel, *range.file, range.offset, range.length)) return false;
  const std::uint64_t skip = range_skip(range);
  progress_of(item).ring.pieces.push_back({.fd = range.file->direct_fd,
                                           .memory = place - skip,
                                           .length = static_cast<std::uint32_t>(range_room(range)),
                                           .file_offset = range.offset - skip});
  range.moved = cold;
  return true;
}

void staged::gather_ring_done(job& item) {
  auto& mine = progress_of(item);
  auto piece = mine.ring.pieces.begin();
  status refusal;
  for (auto& range : item.ranges) {
    if (range.moved != cold) continue;
    auto why = take_piece(range, *piece++);
    if (!why.ok()) refusal = std::move(why);
  }
  if (refusal.ok()) {
    scatter(item);
    return;
  }
  // All is read again, through the page cache.
  mine.ring_refused = true;
  hand_over(item, std::move(refusal));
}

// Counts what a disk lane has read of a range. An error when that is not all there is.
status staged::take_piece(gather_range& range, const staging::ring_piece& done) {
  const std::uint64_t skip = range_skip(range);
  range.moved = std::min(range.length, done.moved > skip ? done.moved - skip : 0);
  if (done.error == 0 && (range.moved == range.length || ends_at(*range.file, range.offset + range.moved))) return {};
  return status::from_errno(done.error != 0 ? done.error : EIO,
                            fmt::format("direct read {} at {} of {}", range.length, range.offset, range.file->name));
}

void staged::scatter(job& item) {
  auto& mine = progress_of(item);
  const std::size_t count = fill_table(item, mine.slab);
  if (count == 0) {
    finish_ranges(item);
    return;
  }
  if (count == 1) {  // one copy is quicker than the kernel
    copy_one_by_one(item, count);
    return;
  }
  mine.copy = {};
  mine.copy.table = table_of(item, mine.slab);
  mine.copy.count = count;
  mine.copy.to_device = !item.is_write;
  mine.copy.context = &item;
  mine.copy.done = &staged::scattered;
  submit(item, mine.copy);
}

void staged::scattered(staging::copy_task& task, status outcome) {
  auto& item = job_of(task);
  auto& self = path_of(item);
  if (outcome.code() == errc::unsupported && task.count > 0) {
    self.copy_one_by_one(item, task.count);
    return;
  }
  if (!outcome.ok()) {
    for (auto& range : item.ranges) {
      if (!range.error.ok()) continue;
      range.moved = 0;
      range.error = outcome.with_context("staged");
    }
    finish(item, 0, {});
    return;
  }
  if (item.is_write) {
    queue_drain(item);
  } else {
    finish_ranges(item);
  }
}

// A lone segment; and where the kernel cannot be loaded, all as single copies, one after the other. next is kept in item.moved.
void staged::copy_one_by_one(job& item, std::size_t count) {
  auto& mine = progress_of(item);
  const device::segment segment = table_of(item, mine.slab)[count - 1];
  item.moved = count - 1;
  mine.copy = {};
  mine.copy.target = segment.target;
  mine.copy.source = segment.source;
  mine.copy.bytes = segment.bytes;
  mine.copy.to_device = !item.is_write;
  mine.copy.context = &item;
  mine.copy.done = [](staging::copy_task& task, status outcome) {
    auto& done = job_of(task);
    auto& self = path_of(done);
    if (outcome.ok() && done.moved > 0) {
      self.copy_one_by_one(done, done.moved);
    } else {
      scattered(task, std::move(outcome));
    }
  };
  submit(item, mine.copy);
}

void staged::write_out_ranges(job& item) {
  std::uint64_t at = 0;
  item.moved = 0;
  for (auto& range : item.ranges) {
    const std::byte* place = progress_of(item).slab.data() + at + range_skip(range);
    at += range_room(range);
    if (range.error.ok()) range.error = item.owner->range_stopped(range);
    if (!range.error.ok()) continue;
    auto put = drain_slab(*with_.kernel, *range.file, place, range.length, range.offset, {});
    range.moved = put.bytes_done;
    range.error = std::move(put.error);
    item.moved += range.moved;
  }
}

void staged::finish_ranges(job& item) {
  std::uint64_t total = 0;
  for (const auto& range : item.ranges) total += range.moved;
  finish(item, total, {});
}

}  // namespace penstock::path
