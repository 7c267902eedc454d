// Many small ranges in one slab: one copy, and one kernel on the device that scatters (or gathers) them.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <new>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "path/direct_read.hpp"
#include "path/staged.hpp"

namespace penstock::path {

namespace {

// Each range has the position in the slab that a direct read of whole blocks needs. If file and memory are equally aligned, that also lets
// the device's kernel transfer 16 bytes at a time.
std::uint64_t range_skip(const gather_range& range) { return range.offset % direct_alignment; }
std::uint64_t range_room(const gather_range& range) { return blocks_around(range.offset, range.length); }

constexpr std::uint64_t cold = ~std::uint64_t{0};  // gather_range::moved of a range that a disk lane reads

// The table of segments follows the ranges in the same slab.
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

// The ranges of one job, read by any thread that is free. Threads take shares by number, and the one that reads the last share continues
// the job. It is queued at most once at a time: a thread that finds it in the queue and takes a share queues it again for the next thread.
// Reference-counted by its readers and by the queue, because a late thread still accesses it after the job has been destroyed.
class staged::shared_reading final : public staging::work {
 public:
  // Returns null if sharing is not worthwhile, or if memory ran out.
  static shared_reading* of(staged& by, job& item, bool ring) {
    const std::uint64_t count = item.ranges.size();
    const auto room = gather_need(item) - count * sizeof(device::segment);
    const auto ranges = std::max((count + most_shares - 1) / most_shares, std::min(bytes_per_share * count / room, most_ranges_per_share));
    if (count <= ranges || item.queues->lanes->backlog() > 0) return nullptr;
    return new (std::nothrow) shared_reading(by, item, ring, ranges);
  }

  bool run() override {
    for (bool first = true;; first = false) {
      const auto mine = next_.fetch_add(1, std::memory_order_relaxed);
      if (mine >= count_) break;
      // The job exists for as long as one of its shares is unread.
      if (first && mine + 1 < count_) invite(count_ - mine - 1);
      const auto from = mine * ranges_per_share_;
      const auto ranges = std::span(item_.ranges);
      by_.read_ranges(item_, ranges.subspan(from, std::min(ranges_per_share_, ranges.size() - from)), starts_[mine], ring_);
      if (unread_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        end();
        break;
      }
    }
    release();
    return true;
  }

 private:
  static constexpr std::uint64_t most_shares = 16;
  static constexpr std::uint64_t most_ranges_per_share = 16;  // of 4 KiB: 16 us (H200 machine)
  static constexpr std::uint64_t bytes_per_share = std::uint64_t{64} << 10;
  static constexpr std::size_t worth_waking = 4;  // shares: waking a thread takes 20 us

  shared_reading(staged& by, job& item, bool ring, std::size_t ranges_per_share)
      : by_(by),
        item_(item),
        ring_(ring),
        ranges_per_share_(ranges_per_share),
        count_((item.ranges.size() + ranges_per_share - 1) / ranges_per_share),
        unread_(count_) {
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < item.ranges.size(); ++i) {
      if (i % ranges_per_share == 0) starts_[i / ranges_per_share] = at;
      at += range_room(item.ranges[i]);
    }
  }
  void invite(std::size_t shares) {
    references_.fetch_add(1, std::memory_order_relaxed);
    item_.queues->lanes->offer(item_.queues->shared_works, *this, shares > worth_waking);
  }
  // The job, and everything to which it belongs, may be destroyed when this returns.
  void end() {
    if (item_.queues->lanes->withdraw(item_.queues->shared_works, *this)) release();
    step(item_, [this] { by_.ranges_read(item_); });
  }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  staged& by_;
  job& item_;
  const bool ring_;
  const std::size_t ranges_per_share_;
  const std::size_t count_;                          // number of shares
  std::array<std::uint64_t, most_shares> starts_{};  // in the slab
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> unread_;
  std::atomic<std::size_t> references_{1};
};

void staged::start_gather_read(job& item) {
  auto& mine = progress_of(item);
  prepare_ring(item, false);
  const bool ring = !mine.ring_refused && item.queues->has_rings();
  if (auto* const shared = shared_reading::of(*this, item, ring); shared != nullptr) {
    (void)shared->run();
    return;
  }
  read_ranges(item, item.ranges, 0, ring);
  ranges_read(item);
}

// Reads adjacent ranges into the slab, starting at `at`. Marks those that are for the ring.
void staged::read_ranges(const job& item, std::span<gather_range> ranges, std::uint64_t at, bool ring) noexcept {
  for (auto& range : ranges) {
    std::byte* const place = progress_of(item).slab.data() + at + range_skip(range);
    at += range_room(range);
    auto got = or_without_memory(
        [&]() -> io_result {
          if (auto stop = item.owner->range_stopped(range); !stop.ok()) return {0, std::move(stop)};
          const bool by_ring = ring && range.file->descriptors().direct >= 0;
          range.past_cache = is_for_disk(range, by_ring);
          if (range.past_cache && by_ring) return {cold, {}};
          return fill_slab(*range.file, place, range.length, range.offset, {.way = range.past_cache ? way::past_cache : way::cached},
                           [&](const status& why) {
                             range.past_cache = false;
                             item.owner->did_without(item, why);
                           });
        },
        [] {
          return io_result{0, no_memory()};
        });
    range.moved = got.bytes_done;
    range.error = std::move(got.error);
  }
}

// Returns true if the range should be read past the page cache. Without a ring, only cache_use::bypass does that, because the thread waits
// for each read.
bool staged::is_for_disk(const gather_range& range, bool by_ring) {
  if (range.cache == cache_use::fill || (!by_ring && range.cache != cache_use::bypass)) return false;
  if (range.cached == residency::resident) return false;
  if (range.cached == residency::absent) return range.file->direct_problem().ok();
  return goes_past_cache(*range.file, range.offset, range.length, range.cache);
}

// Called when all cached ranges have been read.
void staged::ranges_read(job& item) {
  auto& mine = progress_of(item);
  auto& ring = mine.ring;
  std::uint64_t at = 0;
  for (const auto& range : item.ranges) {
    const auto room = range_room(range);
    if (range.moved == cold) {
      ring.pieces.push_back({.fd = range.file->descriptors().direct,
                             .memory = mine.slab.data() + at,
                             .length = static_cast<std::uint32_t>(room),
                             .file_offset = range.offset - range_skip(range)});
    }
    at += room;
  }
  if (ring.pieces.empty()) {
    scatter(item);
    return;
  }
  ring.done = &staged::after_ring<&staged::gather_ring_done>;
  ring.memory = mine.slab.release();
  item.queues->disk->push_ready(ring);
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
  // All ranges are read again, through the page cache.
  mine.ring_refused = true;
  hand_over(item, std::move(refusal));
}

// Counts the bytes of a range that a disk lane has read. Returns an error if some are missing.
status staged::take_piece(gather_range& range, const staging::ring_piece& done) {
  const std::uint64_t skip = range_skip(range);
  range.moved = std::min(range.length, done.moved > skip ? done.moved - skip : 0);
  if (done.error == 0 && (range.moved == range.length || ends_at(*range.file, range.offset + range.moved))) return {};
  return status::from_errno(done.error != 0 ? done.error : EIO,
                            fmt::format("direct read {} at {} of {}", range.length, range.offset, range.file->name()));
}

void staged::scatter(job& item) {
  auto& mine = progress_of(item);
  const std::size_t count = fill_table(item, mine.slab);
  if (count == 0) {
    finish_ranges(item);
    return;
  }
  if (count == 1) {  // one copy is faster than the kernel
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

// Copies a single segment, or all segments one after another if the kernel cannot be loaded. item.moved is the index of the next one.
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
    auto put = drain_slab(*range.file, place, range.length, range.offset, {});
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
