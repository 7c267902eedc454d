// Device memory by way of pinned slabs. Ranges in the page cache are read with pread by the copy lanes, others past the cache by
// the disk lanes; the feeder sends full slabs. Writes run the same way backwards. A gathering job carries many small ranges in
// one slab, scattered (or gathered) on the device by one kernel.
#include "path/staged.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "path/file_io.hpp"

namespace penstock::path {

namespace {

// Pieces of a direct extent: enough of them to keep a drive busy, as large as may be, since each wakes a thread.
constexpr std::uint64_t ring_piece_bytes(std::uint64_t extent_bytes) {
  return std::clamp(round_up(extent_bytes / 4), std::uint64_t{128} << 10, std::uint64_t{2} << 20);
}

// Of the pieces of a plain extent: the bytes moved without a gap from the first on, and the first error at their end.
struct tally {
  std::uint64_t bytes = 0;
  int error = 0;
};

tally contiguous(const std::vector<staging::ring_piece>& pieces) {
  tally total;
  for (const auto& piece : pieces) {
    total.bytes += piece.moved;
    if (piece.error != 0) total.error = piece.error;
    if (piece.moved < piece.length) break;
  }
  return total;
}

}  // namespace

std::optional<std::string> staged::refuses(const question& asked) {
  if (!asked.memory->on_device()) return "the memory is the host's, which needs no staging";
  return std::nullopt;
}

bool staged::run(job& item) {
  if (item.draining) {
    drain(item);
    return true;
  }
  if (item.shared != nullptr) {
    read_in_wave(item);
    return true;
  }
  if (auto stop = item.owner->stopped(); !stop.ok()) {
    finish(item, 0, std::move(stop));
    return true;
  }
  if (const auto got = take_slab(item); got != slab_wait::taken) return got == slab_wait::ended;
  step(item, [&] {
    if (!item.ranges.empty()) {
      item.is_write ? scatter(item) : start_gather_read(item);
    } else if (item.is_write) {
      send(item, item.length, false);
    } else if (item.on_disk_lane) {
      start_ring_read(item);
    } else {
      read_here(item);
    }
  });
  return true;
}

// --- slabs

// ended: there will be no slab, and the job has been finished.
staged::slab_wait staged::take_slab(job& item) {
  const std::uint64_t bytes = item.ranges.empty() ? slab_need(item) : gather_need(item);
  auto taken = or_no_memory([&]() -> result<staging::slab> {
    if (item.on_disk_lane) return item.place.via->pool().try_take(bytes, item.place.via->session(), staging::slab_user::disk);
    auto lent = wait_for_slab(item, bytes);
    if (!lent) return lent.error();
    return lent->release();
  });
  if (!taken) {
    finish(item, 0, taken.error());
    return slab_wait::ended;
  }
  item.slab = *taken;
  return item.slab ? slab_wait::taken : slab_wait::not_now;
}

result<staging::lent_slab> staged::wait_for_slab(const job& item, std::uint64_t bytes) {
  return staging::wait_for_slab(*item.place.via, bytes, *item.queues->lanes, *with_.feeders, [&] { return item.owner->stopped(); });
}

std::uint64_t staged::slab_need(const job& item) {
  if (!item.bypass_cache) return item.length;
  const std::uint64_t skip = item.offset % direct_alignment;
  return round_up(skip + item.length);
}

void staged::give_back(job& item) {
  if (item.slab) item.place.via->pool().give_back(std::exchange(item.slab, {}));
}

void staged::finish(job& item, std::uint64_t bytes, status error) {
  give_back(item);
  item.owner->finished(item, bytes, error.ok() ? error : error.with_context("staged"));
}

void staged::hand_over(job& item, status why) {
  give_back(item);
  item.moved = 0;
  item.owner->hand_over(item, why.with_context("staged"));
}

// --- reads

// On a copy lane or the caller's thread: through the page cache, or past it with a plain system call where there is no ring.
void staged::read_here(job& item) {
  const std::uint64_t skip = item.bypass_cache ? item.offset % direct_alignment : 0;
  auto got = fill_slab(*with_.kernel, *item.file, item.slab.data + skip, item.length, item.offset, route_of(item));
  if (item.bypass_cache && !got.ok()) {
    hand_over(item, std::move(got.error));
    return;
  }
  item.failure = std::move(got.error);
  read_arrived(item, got.bytes_done, skip);
}

void staged::start_ring_read(job& item) {
  const std::uint64_t start = round_down(item.offset);
  const std::uint64_t total = slab_need(item);
  prepare_ring(item, false);
  const std::uint64_t piece = ring_piece_bytes(total);
  for (std::uint64_t at = 0; at < total; at += piece) {
    const auto length = static_cast<std::uint32_t>(std::min(piece, total - at));
    item.ring.pieces.push_back({.fd = item.file->direct_fd, .memory = item.slab.data + at, .length = length, .file_offset = start + at});
  }
  item.ring.done = &staged::after_ring<&staged::ring_read_done>;
  staging::disk_lanes::begin(item.ring);
}

void staged::ring_read_done(job& item) {
  item.slab = item.ring.memory;  // empty when the ring died with the slab
  const auto total = contiguous(item.ring.pieces);
  if (total.error != 0) {
    hand_over(item, status::from_errno(total.error, fmt::format("direct read {} at {} of {}", item.length, item.offset, item.file->name)));
    return;
  }
  const std::uint64_t skip = item.offset % direct_alignment;
  const std::uint64_t bytes = std::min(item.length, total.bytes > skip ? total.bytes - skip : 0);
  if (bytes < item.length && !ends_at(*item.file, item.offset + bytes)) {
    hand_over(item, {errc::io, fmt::format("direct read {} at {} of {}: only {} bytes came, and the file does not end there", item.length,
                                           item.offset, item.file->name, bytes)});
    return;
  }
  read_arrived(item, bytes, skip);
}

// A direct read may stop early on some file systems; only the kernel tells that from the end of the file.
bool staged::ends_at(const file_view& file, std::uint64_t offset) {
  const auto end = path::ends_at(*with_.kernel, file, offset);
  return end && *end;
}

void staged::prepare_ring(job& item, bool is_write) {
  item.ring.is_write = is_write;
  item.ring.memory = item.slab;
  item.ring.pool = &item.place.via->pool();
  item.ring.context = &item;
  item.ring.group = item.queues;
  item.ring.pieces.clear();
}

// File bytes are in the slab, skip bytes from its start: send them.
void staged::read_arrived(job& item, std::uint64_t bytes, std::uint64_t skip) {
  if (bytes == 0) {
    finish(item, 0, std::move(item.failure));
    return;
  }
  item.moved = bytes;
  send(item, bytes, true, skip);
}

// Queues the copy between slab and device.
void staged::send(job& item, std::uint64_t bytes, bool to_device, std::uint64_t skip) {
  auto& copy = item.copy;
  copy = {};
  copy.to_device = to_device;
  copy.prompt = item.on_disk_lane;
  copy.target = to_device ? item.memory : item.slab.data;
  copy.source = to_device ? item.slab.data + skip : item.memory;
  copy.bytes = bytes;
  copy.context = &item;
  copy.done = to_device ? &staged::arrived_on_device : &staged::arrived_on_host;
  submit(item, item.copy);
}

void staged::submit(job& item, staging::copy_task& copy) {
  auto& feeder = item.place.via->feeder();  // item may be done and gone as soon as it is submitted
  item.queues->lanes->feed(!feeder.outstanding());
  feeder.submit(copy);
  (void)feeder.pump();
  with_.feeders->attend();
}

void staged::arrived_on_device(staging::copy_task& task, status outcome) {
  auto& item = job_of(task);
  if (!outcome.ok()) {
    finish(item, 0, std::move(outcome));
    return;
  }
  finish(item, item.moved, std::exchange(item.failure, {}));
}

// --- writes

// The bytes of a write are in the slab. Never blocks: it goes on on a lane.
void staged::arrived_on_host(staging::copy_task& task, status outcome) {
  auto& item = job_of(task);
  if (!outcome.ok()) {
    finish(item, 0, std::move(outcome));
    return;
  }
  if (item.ranges.empty() && item.bypass_cache && item.queues->disk->available().ok()) {
    step(item, [&] { start_ring_write(item); });
  } else {
    queue_drain(item);
  }
}

void staged::start_ring_write(job& item) {
  prepare_ring(item, true);
  const std::uint64_t piece = ring_piece_bytes(item.length);
  for (std::uint64_t at = 0; at < item.length; at += piece) {
    const auto length = static_cast<std::uint32_t>(std::min(piece, item.length - at));
    item.ring.pieces.push_back(
        {.fd = item.file->direct_fd, .memory = item.slab.data + at, .length = length, .file_offset = item.offset + at});
  }
  item.ring.done = &staged::after_ring<&staged::ring_write_done>;
  item.queues->disk->push_ready(item.ring);
}

void staged::ring_write_done(job& item) {
  item.slab = item.ring.memory;
  const auto total = contiguous(item.ring.pieces);
  if (total.error == 0 && total.bytes == item.length) {
    finish(item, total.bytes, {});
    return;
  }
  auto why = fmt::format("direct write {} at {} of {}", item.length, item.offset, item.file->name);
  if (total.error == 0) {
    hand_over(item, {errc::io, fmt::format("{}: only {} bytes were taken", why, total.bytes)});
  } else if (auto error = status::from_errno(total.error, std::move(why)); refuses_direct(error)) {
    hand_over(item, std::move(error));
  } else {
    finish(item, total.bytes, std::move(error));
  }
}

std::unique_ptr<data_path> make_staged(const services& with) { return std::make_unique<staged>(with); }

}  // namespace penstock::path
