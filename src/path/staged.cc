// Device memory by way of pinned slabs. Ranges in the page cache are read with pread by the copy lanes, others past the cache by
// the disk lanes; the feeder sends full slabs. Writes run the same way backwards. A gathering job carries many small ranges in
// one slab, scattered (or gathered) on the device by one kernel.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "path/data_path.hpp"
#include "path/file_io.hpp"
#include "staging/worker.hpp"

namespace penstock::path {

namespace {

constexpr std::uint64_t round_down(std::uint64_t value) { return value / direct_alignment * direct_alignment; }
constexpr std::uint64_t round_up(std::uint64_t value) { return round_down(value + direct_alignment - 1); }

// Pieces of a direct extent: enough of them to keep a drive busy, as large as may be, since each wakes a thread.
constexpr std::uint64_t ring_piece_bytes(std::uint64_t extent_bytes) {
  return std::clamp(round_up(extent_bytes / 4), std::uint64_t{128} << 10, std::uint64_t{2} << 20);
}

job& job_of(staging::copy_task& task) { return *static_cast<job*>(task.context); }
job& job_of(staging::ring_task& task) { return *static_cast<job*>(task.context); }

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

class staged final : public data_path {
 public:
  explicit staged(const services& with) : with_(with) {}

  [[nodiscard]] path_kind kind() const override { return path_kind::staged; }

  [[nodiscard]] std::optional<std::string> refuses(const question& asked) override {
    if (!asked.memory->on_device()) return "the memory is the host's, which needs no staging";
    return std::nullopt;
  }

  bool run(job& item) override {
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
        item.is_write ? start_gather_write(item) : start_gather_read(item);
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

 private:
  // --- slabs

  enum class slab_wait { taken, not_now, ended };

  // ended: there will be no slab, and the job has been finished.
  slab_wait take_slab(job& item) {
    const std::uint64_t bytes = item.ranges.empty() ? slab_need(item) : gather_need(item);
    auto taken = or_no_memory([&] {
      return item.on_disk_lane ? item.place.via->pool().try_take(bytes, item.place.via->session(), staging::slab_user::disk)
                               : wait_for_slab(item, bytes);
    });
    if (!taken) {
      finish(item, 0, taken.error());
      return slab_wait::ended;
    }
    item.slab = *taken;
    return item.slab ? slab_wait::taken : slab_wait::not_now;
  }

  // Waits until there is a slab, or the owner is stopped. Does what else keeps slabs from coming back meanwhile.
  result<staging::slab> wait_for_slab(const job& item, std::uint64_t bytes) {
    auto& pool = item.place.via->pool();
    staging::feeders::watch watch;
    for (bool first = true;; first = false) {
      auto taken = pool.try_take(bytes, item.place.via->session(), staging::slab_user::cpu);
      if (!taken || *taken) return taken;
      if (first) item.queues->lanes->waited();
      if (item.queues->lanes->help_urgent() || with_.feeders->pump()) continue;
      if (auto stop = item.owner->stopped(); !stop.ok()) return stop;
      if (!watch) watch = with_.feeders->try_watch();
      if (watch && with_.feeders->outstanding()) {
        staging::nap();
      } else {
        pool.wait_for_return(std::chrono::microseconds(500));
      }
    }
  }

  static std::uint64_t slab_need(const job& item) {
    if (!item.bypass_cache) return item.length;
    const std::uint64_t skip = item.offset - round_down(item.offset);
    return round_up(skip + item.length);
  }

  static std::uint64_t gather_need(const job& item) {
    std::uint64_t bytes = item.ranges.size() * sizeof(device::segment);
    for (const auto& range : item.ranges) bytes += range_room(range);
    return bytes;
  }

  // A step on the way of a job. One that runs out of memory has handed nothing on yet, and ends the job.
  template <class Step>
  void step(job& item, Step go) {
    try {
      go();
    } catch (const std::bad_alloc&) {
      finish(item, 0, no_memory());
    }
  }

  void give_back(job& item) {
    if (item.slab) item.place.via->pool().give_back(std::exchange(item.slab, {}));
  }

  void finish(job& item, std::uint64_t bytes, status error) {
    give_back(item);
    item.owner->finished(item, bytes, error.ok() ? error : error.with_context("staged"));
  }

  void hand_over(job& item, status why) {
    give_back(item);
    item.moved = 0;
    item.owner->hand_over(item, why.with_context("staged"));
  }

  // --- reads of one extent

  // On a copy lane or the caller's thread: through the page cache, or past it with a plain system call where there is no ring.
  void read_here(job& item) {
    std::uint64_t skip = 0;
    io_result got;
    if (item.bypass_cache) {
      skip = item.offset % direct_alignment;
      got = read_blocks_around(*with_.kernel, *item.file, item.slab.data, item.length, item.offset);
      if (!got.ok() && got.bytes_done < item.length) {
        hand_over(item, std::move(got.error));
        return;
      }
    } else {
      got = read_cached(item, item.slab.data);
    }
    item.failure = std::move(got.error);
    read_arrived(item, got.bytes_done, skip);
  }

  // --- reads of one extent in a wave

  void read_in_wave(job& item) {
    auto& shared = *item.shared;
    item.failure = item.owner->stopped();
    item.moved = 0;
    if (item.failure.ok()) item.failure = enter(shared, item);
    if (item.failure.ok()) {
      auto got = or_without_memory([&] { return read_cached(item, shared.slab.data + (item.offset - shared.offset)); },
                                   [] {
                                     return io_result{0, no_memory()};
                                   });
      item.moved = got.bytes_done;
      item.failure = std::move(got.error);
    }
    if (shared.remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) wave_read(shared);
  }

  // The wave's slab is there when this returns, or the reason why it is not.
  status enter(wave& shared, const job& item) {
    auto seen = wave::state::untaken;
    if (shared.slab_state.compare_exchange_strong(seen, wave::state::taking)) {
      auto taken = or_no_memory([&] { return wait_for_slab(item, shared.length); });
      if (taken) {
        shared.slab = *taken;
      } else {
        shared.refusal = taken.error();
      }
      shared.slab_state.store(wave::state::decided, std::memory_order_release);
      shared.slab_state.notify_all();
      return shared.refusal;
    }
    for (int looks = 0; looks < 100 && shared.slab_state.load(std::memory_order_acquire) != wave::state::decided; ++looks) staging::relax();
    // The link is behind: asleep, so that waiting costs nothing.
    if (seen = shared.slab_state.load(std::memory_order_acquire); seen != wave::state::decided) shared.slab_state.wait(seen);
    return shared.refusal;
  }

  // Everything of the wave is in its slab, up to the first gap, behind which nothing counts.
  void wave_read(wave& shared) {
    std::uint64_t bytes = 0;
    bool gap = false;
    for (job* item = shared.first; item != shared.first + shared.count; ++item) {
      if (gap) item->moved = 0;
      bytes += item->moved;
      gap = gap || item->moved < item->length;
    }
    if (bytes == 0) {
      finish_wave(shared, {});
      return;
    }
    auto& copy = shared.copy;
    copy.target = shared.memory;
    copy.source = shared.slab.data;
    copy.bytes = bytes;
    copy.context = &shared;
    copy.done = [](staging::copy_task& task, status outcome) {
      auto& done = *static_cast<wave*>(task.context);
      static_cast<staged*>(done.first->path)->finish_wave(done, std::move(outcome));
    };
    submit(*shared.first, copy);
  }

  void finish_wave(wave& shared, status outcome) {
    if (shared.slab) shared.first->place.via->pool().give_back(std::exchange(shared.slab, {}));
    job* const first = shared.first;
    const std::uint32_t count = shared.count;  // the wave goes with its last job
    for (std::uint32_t i = 0; i < count; ++i) {
      job& item = first[i];
      if (outcome.ok()) {
        finish(item, item.moved, std::exchange(item.failure, {}));
      } else {
        finish(item, 0, outcome);
      }
    }
  }

  io_result read_cached(const job& item, std::byte* target) {
    return item.sent_at_once ? read_streaming(*with_.kernel, *item.file, target, item.length, item.offset)
                             : read_fully(*with_.kernel, *item.file, target, item.length, item.offset);
  }

  void start_ring_read(job& item) {
    const std::uint64_t start = round_down(item.offset);
    const std::uint64_t total = slab_need(item);
    prepare_ring(item, false);
    const std::uint64_t piece = ring_piece_bytes(total);
    for (std::uint64_t at = 0; at < total; at += piece) {
      const auto length = static_cast<std::uint32_t>(std::min(piece, total - at));
      item.ring.pieces.push_back({.fd = item.file->direct_fd, .memory = item.slab.data + at, .length = length, .file_offset = start + at});
    }
    item.ring.done = [](staging::ring_task& task) {
      auto& done = job_of(task);
      auto& self = *static_cast<staged*>(done.path);
      self.step(done, [&] { self.ring_read_done(done); });
    };
    staging::disk_lanes::begin(item.ring);
  }

  void ring_read_done(job& item) {
    item.slab = item.ring.memory;  // empty when the ring died with the slab
    const auto total = contiguous(item.ring.pieces);
    if (total.error != 0) {
      hand_over(item,
                status::from_errno(total.error, fmt::format("direct read {} at {} of {}", item.length, item.offset, item.file->name)));
      return;
    }
    const std::uint64_t skip = item.offset - round_down(item.offset);
    const std::uint64_t bytes = std::min(item.length, total.bytes > skip ? total.bytes - skip : 0);
    if (bytes < item.length && !ends_at(*item.file, item.offset + bytes)) {
      hand_over(item, {errc::io, fmt::format("direct read {} at {} of {}: only {} bytes came, and the file does not end there", item.length,
                                             item.offset, item.file->name, bytes)});
      return;
    }
    read_arrived(item, bytes, skip);
  }

  // A direct read may stop early on some file systems; only the kernel tells that from the end of the file.
  bool ends_at(const file_view& file, std::uint64_t offset) {
    const auto end = path::ends_at(*with_.kernel, file, offset);
    return end && *end;
  }

  void prepare_ring(job& item, bool is_write) {
    item.ring.is_write = is_write;
    item.ring.memory = item.slab;
    item.ring.pool = &item.place.via->pool();
    item.ring.context = &item;
    item.ring.group = item.queues;
    item.ring.pieces.clear();
  }

  // File bytes are in the slab, skip bytes from its start: send them.
  void read_arrived(job& item, std::uint64_t bytes, std::uint64_t skip) {
    if (bytes == 0) {
      finish(item, 0, std::move(item.failure));
      return;
    }
    item.moved = bytes;
    send(item, bytes, true, skip);
  }

  // Queues the copy between slab and device.
  void send(job& item, std::uint64_t bytes, bool to_device, std::uint64_t skip = 0) {
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

  void submit(job& item, staging::copy_task& copy) {
    auto& feeder = item.place.via->feeder();  // item may be done and gone as soon as it is submitted
    item.queues->lanes->feed(!feeder.outstanding());
    feeder.submit(copy);
    (void)feeder.pump();
    with_.feeders->attend();
  }

  static void arrived_on_device(staging::copy_task& task, status outcome) {
    auto& item = job_of(task);
    auto& self = *static_cast<staged*>(item.path);
    if (!outcome.ok()) {
      self.finish(item, 0, std::move(outcome));
      return;
    }
    self.finish(item, item.moved, std::exchange(item.failure, {}));
  }

  // --- writes of one extent

  // The bytes of a write are in the slab. Never blocks: it goes on on a lane.
  static void arrived_on_host(staging::copy_task& task, status outcome) {
    auto& item = job_of(task);
    auto& self = *static_cast<staged*>(item.path);
    if (!outcome.ok()) {
      self.finish(item, 0, std::move(outcome));
      return;
    }
    if (item.ranges.empty() && item.bypass_cache && item.queues->disk->available().ok()) {
      self.step(item, [&] { self.start_ring_write(item); });
    } else {
      self.queue_drain(item);
    }
  }

  void start_ring_write(job& item) {
    prepare_ring(item, true);
    const std::uint64_t piece = ring_piece_bytes(item.length);
    for (std::uint64_t at = 0; at < item.length; at += piece) {
      const auto length = static_cast<std::uint32_t>(std::min(piece, item.length - at));
      item.ring.pieces.push_back(
          {.fd = item.file->direct_fd, .memory = item.slab.data + at, .length = length, .file_offset = item.offset + at});
    }
    item.ring.done = [](staging::ring_task& task) {
      auto& done = job_of(task);
      auto& self = *static_cast<staged*>(done.path);
      self.step(done, [&] { self.ring_write_done(done); });
    };
    item.queues->disk->push_ready(item.ring);
  }

  void ring_write_done(job& item) {
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

  // What the file system refuses to do past the cache it may do through it; a full or broken disk stays full or broken.
  static bool refuses_direct(const status& error) {
    const int native = error.domain() == error_domain::os ? error.native() : 0;
    return native == EINVAL || native == EOPNOTSUPP || native == ECANCELED || native == EAGAIN;
  }

  static constexpr unsigned drainers_per_request = 1;

  void queue_drain(job& item) {
    item.draining = true;
    item.next_drain = nullptr;
    auto& drains = item.queues->drains;
    {
      const std::lock_guard guard(drains.lock);
      if (drains.running >= drainers_per_request) {
        (drains.tail == nullptr ? drains.head : drains.tail->next_drain) = &item;
        drains.tail = &item;
        return;
      }
      ++drains.running;
    }
    item.queues->lanes->push_urgent(item.queues->urgent_works, item);
  }

  // Writes this slab to the file and then those that have come since. The owner may be gone with its last job.
  void drain(job& first) {
    for (job* item = &first; item != nullptr;) {
      if (!or_no_memory([&] { return write_out(*item); }).ok()) item->failure = no_memory();
      job* next = next_drain(*item->queues);
      if (item->ranges.empty() && item->bypass_cache && refuses_direct(item->failure)) {
        hand_over(*item, std::exchange(item->failure, {}));
      } else {
        finish(*item, item->moved, std::exchange(item->failure, {}));
      }
      item = next;
    }
  }

  static job* next_drain(job_queues& queues) {
    auto& drains = queues.drains;
    const std::lock_guard guard(drains.lock);
    job* next = drains.head;
    if (next == nullptr) {
      --drains.running;
      return nullptr;
    }
    drains.head = next->next_drain;
    if (drains.head == nullptr) drains.tail = nullptr;
    return next;
  }

  // The outcome is in item.moved and item.failure; what is returned is ok.
  status write_out(job& item) {
    item.draining = false;
    item.moved = 0;
    if (!item.ranges.empty()) {
      write_out_ranges(item);
      return {};
    }
    item.failure = item.owner->stopped();
    if (!item.failure.ok()) return {};
    auto put = item.bypass_cache ? write_direct(*with_.kernel, *item.file, item.slab.data, item.length, item.offset)
                                 : write_fully(*with_.kernel, *item.file, item.slab.data, item.length, item.offset);
    item.moved = put.bytes_done;
    item.failure = std::move(put.error);
    return {};
  }

  // --- many small ranges in one slab

  // Where each range lies in the slab: the place that a direct read of whole blocks needs, which for equal file and memory alignment
  // also lets the kernel on the device move 16 bytes at a time.
  static std::uint64_t range_room(const gather_range& range) { return round_up(range.offset % direct_alignment + range.length); }
  static std::uint64_t range_skip(const gather_range& range) { return range.offset % direct_alignment; }

  void start_gather_read(job& item) {
    prepare_ring(item, false);
    const bool ring = !item.ring_refused && item.queues->disk->available().ok();
    std::uint64_t at = 0;
    for (auto& range : item.ranges) {
      std::byte* place = item.slab.data + at + range_skip(range);
      at += range_room(range);
      if (auto stop = item.owner->range_stopped(range); !stop.ok()) {
        range.error = std::move(stop);
      } else if (!ring || !read_later(item, range, place)) {
        auto got = read_fully(*with_.kernel, *range.file, place, range.length, range.offset);
        range.moved = got.bytes_done;
        range.error = std::move(got.error);
      }
    }
    if (item.ring.pieces.empty()) {
      scatter(item);
      return;
    }
    item.ring.done = [](staging::ring_task& task) {
      auto& done = job_of(task);
      auto& self = *static_cast<staged*>(done.path);
      self.step(done, [&] { self.gather_ring_done(done); });
    };
    item.queues->disk->push_ready(item.ring);
  }

  // True: the range is not in the page cache, and is queued for a disk lane. Asks with cachestat: a read that is told not to wait
  // (RWF_NOWAIT) starts a read-ahead for what it does not find, which halves the speed of the direct reads.
  bool read_later(job& item, gather_range& range, std::byte* place) {
    if (range.file->direct_fd < 0 || range.cached == residency::resident) return false;
    if (range.cached == residency::unknown && range.file->cached_fd >= 0) {
      const auto bytes = with_.kernel->resident_bytes(range.file->cached_fd, range.offset, range.length);
      if (!bytes || *bytes > 0) return false;
    }
    const std::uint64_t skip = range_skip(range);
    item.ring.pieces.push_back({.fd = range.file->direct_fd,
                                .memory = place - skip,
                                .length = static_cast<std::uint32_t>(range_room(range)),
                                .file_offset = range.offset - skip});
    range.moved = cold;
    return true;
  }

  static constexpr std::uint64_t cold = ~std::uint64_t{0};  // gather_range::moved of a range that a disk lane reads

  void gather_ring_done(job& item) {
    item.slab = item.ring.memory;  // empty when the ring died with the slab
    auto piece = item.ring.pieces.begin();
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
    item.ring_refused = true;
    hand_over(item, std::move(refusal));
  }

  // Counts what a disk lane has read of a range. An error when that is not all there is.
  status take_piece(gather_range& range, const staging::ring_piece& done) {
    const std::uint64_t skip = range_skip(range);
    range.moved = std::min(range.length, done.moved > skip ? done.moved - skip : 0);
    if (done.error == 0 && (range.moved == range.length || ends_at(*range.file, range.offset + range.moved))) return {};
    return status::from_errno(done.error != 0 ? done.error : EIO,
                              fmt::format("direct read {} at {} of {}", range.length, range.offset, range.file->name));
  }

  // The table of segments lies behind the ranges, in the same slab.
  static device::segment* table_of(const job& item) {
    return reinterpret_cast<device::segment*>(item.slab.data + item.slab.size - item.ranges.size() * sizeof(device::segment));
  }

  std::size_t fill_table(job& item) {
    device::segment* table = table_of(item);
    std::size_t count = 0;
    std::uint64_t at = 0;
    for (auto& range : item.ranges) {
      std::byte* place = item.slab.data + at + range_skip(range);
      at += range_room(range);
      const std::uint64_t bytes = item.is_write ? range.length : range.moved;
      if (bytes == 0 || (item.is_write && !range.error.ok())) continue;
      table[count++] = item.is_write ? device::segment{range.memory, place, bytes} : device::segment{place, range.memory, bytes};
    }
    return count;
  }

  void scatter(job& item) {
    const std::size_t count = fill_table(item);
    if (count == 0) {
      finish_ranges(item);
      return;
    }
    if (count == 1) {  // one copy is quicker than the kernel
      copy_one_by_one(item, count);
      return;
    }
    item.copy = {};
    item.copy.table = table_of(item);
    item.copy.count = count;
    item.copy.to_device = !item.is_write;
    item.copy.context = &item;
    item.copy.done = &staged::scattered;
    submit(item, item.copy);
  }

  static void scattered(staging::copy_task& task, status outcome) {
    auto& item = job_of(task);
    auto& self = *static_cast<staged*>(item.path);
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
      self.finish(item, 0, {});
      return;
    }
    if (item.is_write) {
      self.queue_drain(item);
    } else {
      self.finish_ranges(item);
    }
  }

  // A lone segment; and where the kernel cannot be loaded, all as single copies, one after the other. next is kept in item.moved.
  void copy_one_by_one(job& item, std::size_t count) {
    const device::segment segment = table_of(item)[count - 1];
    item.moved = count - 1;
    item.copy = {};
    item.copy.target = segment.target;
    item.copy.source = segment.source;
    item.copy.bytes = segment.bytes;
    item.copy.to_device = !item.is_write;
    item.copy.context = &item;
    item.copy.done = [](staging::copy_task& task, status outcome) {
      auto& done = job_of(task);
      auto& self = *static_cast<staged*>(done.path);
      if (outcome.ok() && done.moved > 0) {
        self.copy_one_by_one(done, done.moved);
      } else {
        scattered(task, std::move(outcome));
      }
    };
    submit(item, item.copy);
  }

  void write_out_ranges(job& item) {
    std::uint64_t at = 0;
    item.moved = 0;
    for (auto& range : item.ranges) {
      const std::byte* place = item.slab.data + at + range_skip(range);
      at += range_room(range);
      if (range.error.ok()) range.error = item.owner->range_stopped(range);
      if (!range.error.ok()) continue;
      auto put = write_fully(*with_.kernel, *range.file, place, range.length, range.offset);
      range.moved = put.bytes_done;
      range.error = std::move(put.error);
      item.moved += range.moved;
    }
  }

  void start_gather_write(job& item) { scatter(item); }

  void finish_ranges(job& item) {
    std::uint64_t total = 0;
    for (const auto& range : item.ranges) total += range.moved;
    finish(item, total, {});
  }

  services with_;
};

}  // namespace

std::unique_ptr<data_path> make_staged(const services& with) { return std::make_unique<staged>(with); }

}  // namespace penstock::path
