// Transfers device memory through pinned slabs. The copy lanes read cached ranges with pread, the disk lanes read others past the page
// cache, and a turnstile starts those from remote sources. The feeder sends full slabs. Writes take the same steps in reverse. A gathering
// job transfers many small ranges in one slab, and one kernel on the device scatters (or gathers) them.
#include "path/staged.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "path/direct_read.hpp"
#include "sys/thread_clock.hpp"

namespace penstock::path {

std::optional<std::string> staged::refuses(const question& asked) {
  if (!asked.memory->on_device()) return "host memory needs no staging";
  return std::nullopt;
}

// Copies between the device and a slab, and waits for the copy.
io_result staged::carry_now(const small_transfer& what) {
  auto& file = *what.file;
  auto& via = *what.place->via;
  const auto stream = via.small_stream();
  if (!stream) return {0, stream.error()};
  const bool past_cache = !what.is_write && what.cache == cache_use::bypass && goes_past_cache(file, what.offset, what.length, what.cache);
  const std::uint64_t skip = past_cache ? what.offset % direct_alignment : 0;
  const auto room = past_cache ? blocks_around(what.offset, what.length) : what.length;
  const source::stop_question stopped = [&what]() -> status {
    if (std::chrono::steady_clock::now() < what.deadline) return {};
    return {errc::timed_out, "the deadline has passed"};
  };
  const auto slab = staging::wait_for_slab(via, room, *what.lanes, *with_.feeders, stopped);
  if (!slab) return {0, slab.error()};
  if (what.is_write) {
    if (auto copied = via.copy_little(slab->data(), what.memory, what.length, *stream); !copied.ok()) return {0, std::move(copied)};
    return drain_slab(file, slab->data(), what.length, what.offset, {.stopped = &stopped});
  }
  auto outcome = fill_slab(file, slab->data() + skip, what.length, what.offset, {.way = past_cache ? way::past_cache : way::cached},
                           *what.did_without);
  if (outcome.bytes_done == 0) return outcome;
  auto copied = via.copy_little(what.memory, slab->data() + skip, outcome.bytes_done, *stream);
  return copied.ok() ? outcome : io_result{0, std::move(copied)};
}

void staged::prepare(std::span<job> jobs) {
  if (jobs.size() == 1) {
    auto made = std::make_unique<progress>();
    made->of = &jobs.front();
    jobs.front().kept = made.get();
    jobs.front().keeps = std::move(made);
    return;
  }
  auto made = std::make_unique<progress_in_row>(jobs.size(), count_waves(jobs));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    made->each[i].of = &jobs[i];
    jobs[i].kept = &made->each[i];
  }
  make_waves(jobs, made->waves.get());
  jobs.front().keeps = std::move(made);
}

bool staged::run(job& item) {
  if (progress_of(item).shared != nullptr) {
    read_in_wave(item);
    return true;
  }
  if (!item.ranges.empty()) {
    if (auto stop = item.owner->stopped(); !stop.ok()) {
      finish(item, 0, std::move(stop));
      return true;
    }
  }
  if (const auto got = take_slab(item); got != slab_wait::taken) return got == slab_wait::ended;
  step(item, [&] {
    if (!item.ranges.empty()) {
      item.is_write ? scatter(item) : start_gather_read(item);
    } else if (item.is_write) {
      send(item, item.length, false);
    } else if (item.on_disk_lane) {
      start_ring_read(item);
    } else if (item.way == way::far) {
      begin_far_read(item);
    } else {
      read_here(item);
    }
  });
  return true;
}

// With this many bytes requested, so many slabs wait for the link that their lines have left the cores' caches by the time they are copied.
slab_route staged::route_of(const job& item) {
  constexpr std::uint64_t aging_bytes = std::uint64_t{256} << 20;
  return {item.way, item.spares_cache, !item.place.emulated() && item.asked_bytes < aging_bytes};
}

// --- slabs

// Returns `ended` if no slab will become available and the job has been finished.
staged::slab_wait staged::take_slab(job& item) {
  const std::uint64_t bytes = item.ranges.empty() ? slab_need(item) : gather_need(item);
  auto taken = or_no_memory([&]() -> result<staging::lent_slab> {
    if (!item.on_disk_lane) return wait_for_slab(item, bytes, item.way == way::far ? staging::slab_user::far : item.queues->slab_user());
    auto& pool = item.place.via->pool();
    auto& waits_since = progress_of(item).slab_wanted_ns;
    const auto free = pool.try_take(bytes, item.place.via->session(), staging::slab_user::disk, item.queues->pinner);
    if (free && !*free) {
      if (waits_since == 0) waits_since = pool.begin_wait(staging::slab_user::disk);
    } else {
      pool.end_wait(waits_since);
    }
    if (!free) return free.error();
    return staging::lent_slab(pool, *free);
  });
  if (!taken) {
    finish(item, 0, taken.error());
    return slab_wait::ended;
  }
  auto& slab = progress_of(item).slab;
  slab = *std::move(taken);
  return slab ? slab_wait::taken : slab_wait::not_now;
}

result<staging::lent_slab> staged::wait_for_slab(const job& item, std::uint64_t bytes, staging::slab_user user) {
  return staging::wait_for_slab(
      *item.place.via, bytes, *item.queues->lanes, *with_.feeders, [&] { return item.owner->stopped(); }, user);
}

std::uint64_t staged::slab_need(const job& item) {
  return item.way == way::past_cache ? blocks_around(item.offset, item.length) : item.length;
}

void staged::finish(job& item, std::uint64_t bytes, status error) {
  progress_of(item).slab.give_back();
  if (item.on_disk_lane) item.queues->disk->slab_returned();
  item.owner->finished(item, bytes, error.ok() ? error : error.with_context("staged"));
}

void staged::hand_over(job& item, status why) {
  progress_of(item).slab.give_back();
  if (item.on_disk_lane) item.queues->disk->slab_returned();
  item.moved = 0;
  item.owner->hand_over(item, why.with_context("staged"));
}

// --- reads

// Runs on a copy lane or the caller's thread. Reads through the page cache, or past it with a plain system call if there is no ring.
void staged::read_here(job& item) {
  const std::uint64_t skip = item.way == way::past_cache ? item.offset % direct_alignment : 0;
  auto& mine = progress_of(item);
  const auto cpu_before = item.way == way::filling ? sys::thread_cpu_ns() : 0;
  auto got = timed_read(item, [&](std::uint64_t from, std::uint64_t length) {
    return fill_slab(*item.file, mine.slab.data() + skip + from, length, item.offset + from, route_of(item));
  });
  if (item.way == way::filling) item.filling_cpu_ns = sys::thread_cpu_ns() - cpu_before;
  if (item.way == way::past_cache && !got.ok()) {
    hand_over(item, std::move(got.error));
    return;
  }
  mine.failure = std::move(got.error);
  read_arrived(item, got.bytes_done, skip);
}

void staged::begin_far_read(job& item) {
  far_read::memory into{std::move(progress_of(item).slab), nullptr};
  far_read::begin(item, std::move(into), &staged::far_arrived);
}

void staged::far_arrived(job& item, far_read::memory into, io_result got) {
  auto& mine = progress_of(item);
  mine.slab = std::move(into.slab);
  mine.failure = std::move(got.error);
  step(item, [&] { path_of(item).read_arrived(item, got.bytes_done, 0); });
}

void staged::start_ring_read(job& item) {
  auto& ring = prepare_ring(item, false);
  add_ring_pieces(ring, *item.file, progress_of(item).slab.data(), round_down(item.offset), slab_need(item));
  ring.done = &staged::after_ring<&staged::ring_read_done>;
  ring.memory = progress_of(item).slab.release();
  staging::disk_lanes::begin(ring);
}

void staged::ring_read_done(job& item) {
  auto got = ring_read_outcome(item, progress_of(item).ring);
  if (!got.ok()) {
    hand_over(item, std::move(got.error));
    return;
  }
  read_arrived(item, got.bytes_done, item.offset % direct_alignment);
}

// The caller still has to add the pieces, the slab and the callback.
staging::ring_task& staged::prepare_ring(job& item, bool is_write) {
  auto& ring = progress_of(item).ring;
  ring.is_write = is_write;
  ring.pool = &item.place.via->pool();
  ring.context = &item;
  ring.group = item.queues;
  ring.times = item.times;
  ring.pieces.clear();
  return ring;
}

// Sends the file's bytes, which are in the slab, starting `skip` bytes after its beginning.
void staged::read_arrived(job& item, std::uint64_t bytes, std::uint64_t skip) {
  if (bytes == 0) {
    finish(item, 0, std::exchange(progress_of(item).failure, {}));
    return;
  }
  item.moved = bytes;
  send(item, bytes, true, skip);
}

// Queues the copy between slab and device.
void staged::send(job& item, std::uint64_t bytes, bool to_device, std::uint64_t skip) {
  auto& mine = progress_of(item);
  auto& copy = mine.copy;
  copy = {};
  copy.to_device = to_device;
  copy.prompt = item.on_disk_lane;
  copy.target = to_device ? item.memory : mine.slab.data();
  copy.source = to_device ? mine.slab.data() + skip : item.memory;
  copy.bytes = bytes;
  copy.context = &item;
  if (!to_device) {
    copy.done = &staged::arrived_on_host;
    submit(item, copy);
  } else if (item.row.empty() || aim(copy, item, bytes, mine.slab.data() + skip)) {
    send_over(copy, item, &staged::arrived_on_device);
  } else {
    arrived_on_device(copy, {});
  }
}

void staged::submit(const job& item, staging::copy_task& copy, staging::link& by) {
  auto& feeder = by.feeder();  // the job may have ended and been destroyed once it is submitted
  item.queues->lanes->feed(&feeder, !feeder.outstanding());
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
  finish(item, item.moved, std::exchange(progress_of(item).failure, {}));
}

// --- writes

// Called when the bytes of a write are in the slab. Never blocks: the write continues on a lane.
void staged::arrived_on_host(staging::copy_task& task, status outcome) {
  auto& item = job_of(task);
  if (!outcome.ok()) {
    finish(item, 0, std::move(outcome));
    return;
  }
  if (item.ranges.empty() && item.way == way::past_cache && item.file->descriptors().direct >= 0 && item.queues->has_rings()) {
    step(item, [&] { start_ring_write(item); });
  } else {
    queue_drain(item);
  }
}

void staged::start_ring_write(job& item) {
  auto& ring = prepare_ring(item, true);
  add_ring_pieces(ring, *item.file, progress_of(item).slab.data(), item.offset, item.length);
  ring.done = &staged::after_ring<&staged::ring_write_done>;
  ring.memory = progress_of(item).slab.release();
  item.queues->disk->push_ready(ring);
}

void staged::ring_write_done(job& item) {
  const auto total = contiguous(progress_of(item).ring.pieces);
  if (total.error == 0 && total.bytes == item.length) {
    finish(item, total.bytes, {});
    return;
  }
  auto why = fmt::format("direct write {} at {} of {}", item.length, item.offset, item.file->name());
  if (total.error == 0) {
    hand_over(item, {errc::io, fmt::format("{}: only {} bytes were written", why, total.bytes)});
  } else if (auto error = status::from_errno(total.error, std::move(why)); refuses_direct(error)) {
    hand_over(item, std::move(error));
  } else {
    finish(item, total.bytes, std::move(error));
  }
}

constinit const declaration declared_staged{
    .name = "staged",
    .rank = 30,
    .carries = portion::everything,
    .most_carried_now = std::uint64_t{128} << 10,  // 64 KiB take 26 us over two lanes, but 18 us on the caller's thread
    .cut = cut_for_staged,
    .make = [](const services& with) -> std::unique_ptr<data_path> { return std::make_unique<staged>(with); },
};

}  // namespace penstock::path
