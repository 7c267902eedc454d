// Reads and writes host memory in place. All other paths are compared with this one.
#include <algorithm>
#include <bit>
#include <cassert>
#include <chrono>

#include <memory>
#include <utility>

#include "base/no_memory.hpp"
#include "path/data_path.hpp"
#include "path/direct_read.hpp"
#include "path/far_read.hpp"
#include "sys/checked_copy.hpp"

namespace penstock::path {

using source::caching;

extern const declaration declared_posix;

namespace {

// Past the page cache, a ring reads directly into the user's memory. File systems with a server accept any alignment.
struct direct_into_host final : path_state {
  staging::ring_task ring;
};

class posix final : public data_path {
 public:
  [[nodiscard]] const declaration& declared() const override { return declared_posix; }

  [[nodiscard]] std::optional<std::string> refuses(const question& asked) override {
    if (asked.memory->on_device()) return "the memory is on a device, which pread cannot access";
    return std::nullopt;
  }

  bool run(job& item) override {
    if (!item.ranges.empty()) return run_ranges(item);
    if (item.way == way::far) {
      far_read::begin(item, {{}, far_blocks_.take(item.length)}, &posix::arrived);
      return true;
    }
    if (item.on_disk_lane) {
      begin_ring_read(item);
      return true;
    }
    auto outcome = timed_read(item, [&](std::uint64_t from, std::uint64_t length) { return transfer_of(item, from, length); });
    if (!outcome.ok() && item.way == way::past_cache && !item.is_write) {
      refused(item, std::move(outcome.error));
      return true;
    }
    if (!item.waits) item.queues->lanes->feed(nullptr, true);
    item.owner->finished(item, outcome.bytes_done, std::move(outcome.error));
    return true;
  }

  io_result carry_now(const small_transfer& what) override {
    const auto by = what.spares_cache ? caching::uncached : caching::usual;
    if (!what.is_write) return what.file->fill(what.memory, what.length, what.offset, by);
    const source::stop_question stopped = [&what]() -> status {
      if (std::chrono::steady_clock::now() < what.deadline) return {};
      return {errc::timed_out, "the deadline has passed"};
    };
    return what.file->drain(what.memory, what.length, what.offset, {by, &stopped});
  }

 private:
  static io_result transfer_of(const job& item, std::uint64_t from, std::uint64_t length) {
    const bool past_cache = item.way == way::past_cache && !item.is_write;
    assert(!past_cache || (item.offset | item.length) % direct_alignment == 0);
    const auto by = past_cache ? caching::direct : item.spares_cache ? caching::uncached : caching::usual;
    const source::stop_question stopped = [&item] { return item.owner->stopped(); };
    auto outcome = item.is_write ? item.file->drain(item.memory + from, length, item.offset + from, {by, &stopped})
                                 : item.file->fill(item.memory + from, length, item.offset + from, by);
    outcome.error = outcome.error.with_context("posix");
    return outcome;
  }

  static void begin_ring_read(job& item) {
    assert((item.offset | item.length) % direct_alignment == 0 && "whole blocks are written into the memory");
    auto made = std::make_unique<direct_into_host>();
    auto& ring = made->ring;
    ring.context = &item;
    ring.group = item.queues;
    ring.times = item.times;
    ring.done = [](staging::ring_task& task) { ring_read_done(*static_cast<job*>(task.context), task); };
    add_ring_pieces(ring, *item.file, item.memory, item.offset, item.length);
    item.keeps = std::move(made);
    staging::disk_lanes::begin(ring);
  }

  static void ring_read_done(job& item, const staging::ring_task& ring) {
    auto got = ring_read_outcome(item, ring);
    if (!got.ok()) {
      refused(item, got.error.with_context("posix"));
    } else {
      item.owner->finished(item, got.bytes_done, {});
    }
  }

  // The rest is read through the page cache.
  static void refused(job& item, status why) {
    const bool is_aligned = source::aligned(item.memory, item.length, item.offset);
    if (item.times != nullptr && !is_aligned && why.code() == errc::invalid_argument) item.times->refused_unaligned();
    item.moved = 0;
    item.owner->hand_over(item, std::move(why));
  }

  static void arrived(job& item, far_read::memory into, io_result got) {
    const auto copied = got.bytes_done == 0 ? result<std::size_t>(0)
                                            : or_no_memory([&] { return sys::copy_checked(item.memory, into.data(), got.bytes_done); });
    if (!copied || *copied < got.bytes_done)
      got = {copied.value_or(0), copied ? status(errc::bad_memory, "it cannot be written") : copied.error()};
    into = {};  // before the owner is called
    item.owner->finished(item, got.bytes_done, got.error.with_context("posix"));
  }

  bool run_ranges(job& item) {
    std::uint64_t total = 0;
    for (auto& range : item.ranges) {
      range.error = item.owner->range_stopped(range);
      if (!range.error.ok()) continue;
      auto outcome = item.is_write ? range.file->drain(range.memory, range.length, range.offset)
                                   : range.file->fill(range.memory, range.length, range.offset);
      range.moved = outcome.bytes_done;
      range.error = outcome.error.with_context("posix");
      total += range.moved;
    }
    item.owner->finished(item, total, {});
    return true;
  }

  host_blocks far_blocks_;
};

// Cuts enough pieces for all lanes, but none so small that passing it to a lane costs more than reading it.
void cut_for_lanes(const range_to_cut& range, std::vector<cut_piece>& pieces) {
  constexpr std::uint64_t least = std::uint64_t{256} << 10;
  constexpr std::uint64_t most = std::uint64_t{4} << 20;
  if (range.late_piece > 0 && range.way != way::cached) {
    const bool past_cache = range.way == way::past_cache;
    return cut_at_multiples(range, past_cache && range.late_piece <= most / 4 ? 4 * range.late_piece : range.late_piece, pieces);
  }
  cut_at_multiples(range, std::clamp(std::bit_ceil(range.length / std::max(1U, range.lanes)), least, most), pieces);
}

}  // namespace

constinit const declaration declared_posix{
    .name = "posix",
    .rank = 40,
    .of_device = false,
    .carries = portion::everything,
    .most_carried_now = std::uint64_t{1} << 20,
    .cut = cut_for_lanes,
    .make = [](const services& /*with*/) -> std::unique_ptr<data_path> { return std::make_unique<posix>(); },
};

}  // namespace penstock::path
