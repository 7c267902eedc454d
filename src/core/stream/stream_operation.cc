#include "core/stream/stream_operation.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/mount.hpp"
#include "path/slab_io.hpp"
#include "staging/worker.hpp"

namespace penstock::core {

namespace {

constexpr std::uint64_t page = path::direct_alignment;
using path::round_down;
using path::round_up;

constexpr std::uint64_t least_part_bytes = std::uint64_t{128} << 10;
// The stream is blocked while it waits. (For 64 KiB requests, 16 KiB parts reach 2.4 GB/s instead of 1.9, but cost 2.5 CPU s/GB instead of
// 1.5.)
constexpr std::uint64_t least_part_bytes_in_turn = std::uint64_t{64} << 10;
constexpr std::uint64_t part_bytes_ahead = std::uint64_t{1} << 20;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
bool has_constant_arguments(const stream_request& asked) { return asked.constant_arguments || asked.fixed; }
#pragma GCC diagnostic pop

}  // namespace

stream_operation::stream_operation(std::shared_ptr<runtime> with, admission admitted, const stream_request& what)
    : runtime_(std::move(with)),
      admitted_(std::move(admitted)),
      asked_(what),
      is_write_(admitted_.what().is_write),
      is_told_early_(has_constant_arguments(what) && what.told_early && !is_write_),
      passes_early_(has_constant_arguments(what) && what.passes_early && what.bytes_done == nullptr) {
  asked_.constant_arguments = has_constant_arguments(what);
  if (asked_.constant_arguments) {
    fixed_ = {*what.length, *what.offset, memory_offset_of(what)};
    asked_.length = &fixed_.length;
    asked_.offset = &fixed_.offset;
    asked_.memory_offset = &fixed_.memory_offset;
  }
  admitted_.list();
}

void stream_operation::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

// A scope that changes an operation. Keeps it alive, because its stream may pass it at any time. On destruction, after releasing the lock,
// it reports the outcome if it has become known, and wakes waiters for slabs.
class stream_operation::visit {
 public:
  explicit visit(stream_operation& op) : op_(op), guard_(op.lock_), runtime_(op.runtime_) { op_.retain(); }
  visit(const visit&) = delete;
  visit& operator=(const visit&) = delete;
  ~visit() {
    const bool tells = op_.stage_ == stage::due;
    if (tells) op_.go_to(stage::telling);
    const bool wakes = std::exchange(op_.gave_slabs_, false);
    guard_.unlock();
    if (tells) op_.tell();
    if (wakes) op_.memory_->wake(op_.block_.size());
    op_.release();
  }

 private:
  stream_operation& op_;
  std::unique_lock<std::mutex> guard_;
  std::shared_ptr<runtime> runtime_;  // owns the memory
};

// --- while it is queued

status stream_operation::prepare(const staging::place& place, const seen_allocation& seen) {
  auto& session = place.via->session();
  if (auto problem = find_room(seen); !problem.ok()) return problem;
  if (asked_.bytes_done != nullptr) {
    const auto where = runtime_->memory().place_of(asked_.bytes_done, sizeof(std::int64_t));
    if (!where) return where.error();
    if (where->on_device()) count_on_device_ = asked_.bytes_done;
  }
  is_told_early_ = is_told_early_ && count_on_device_ == nullptr;  // the stream writes the count after the bytes
  const bool is_aligned = asked_.constant_arguments && *asked_.offset % static_cast<std::int64_t>(page) == 0;
  block_ = stream_block(
      std::min<std::uint64_t>(*asked_.length, room_),
      {.aligned = is_aligned, .waits_for_end = !is_told_early_ && !passes_early_, .in_turn = !asked_.constant_arguments && !is_write_});
  make_lines();
  // Load the kernel now, because once a stream is blocked, loading would wait for it.
  if (auto problem = session.prepare_scatter(); !problem.ok()) return problem;
  auto& memory = admitted_.file().mount().stream_memory_of(place);
  const auto block = memory.enter(block_.size(), lines_.size(), session);
  if (!block) return block.error();
  block_.lie_in(*block);
  memory_ = &memory;
  stream_ = session.identity_of(asked_.stream);
  begin_ahead();
  retain();
  auto watched = or_no_memory([this] { return runtime_->stream_watch().add(asked_.stream, *this); });
  if (!watched.ok()) release();
  return watched;
}

// Keep this cheap for small requests. There may be hundreds of thousands per second.
void stream_operation::make_lines() {
  const auto longest = std::min<std::uint64_t>(*asked_.length, block_.wave_bytes());
  if (!is_write_) most_parts_ = std::clamp<std::size_t>(longest / shortest_part(), 1, most_parts);
  lines_ = std::vector<line>(std::min(stream_block::waves_at_once, block_.waves()));
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    lines_[i].heir.owner = this;
    lines_[i].heir.of = i;
    lines_[i].parts = std::make_unique<part[]>(most_parts_);
    for (std::size_t k = 0; k < most_parts_; ++k) {
      lines_[i].parts[k].owner = this;
      lines_[i].parts[k].of = i;
    }
  }
}

// Returns true for values that the caller has promised not to change. Returns false if an earlier queued write overlaps the read, which
// then starts when the stream reaches it.
bool stream_operation::may_begin_ahead() {
  const bool is_constant = asked_.constant_arguments;
  if (is_write_) return is_constant;
  const auto offset = is_constant ? static_cast<std::uint64_t>(fixed_.offset) : 0;
  follows_write_ =
      runtime_->stream_watch().is_written_to(admitted_.file().source(), offset, is_constant ? fixed_.length : ~std::uint64_t{0});
  return is_constant && !follows_write_;
}

// Call once the stream has reached a read. A write that the stream has not passed by then comes after the read.
bool stream_operation::must_wait_for_write() const {
  if (!follows_write_) return false;
  const auto offset = asked_.constant_arguments ? static_cast<std::uint64_t>(fixed_.offset) : 0;
  const auto length = asked_.constant_arguments ? fixed_.length : ~std::uint64_t{0};
  return runtime_->stream_watch().is_being_written_to(admitted_.file().source(), offset, length);
}

void stream_operation::begin_ahead() {
  if (is_write_) note_write();
  if (!may_begin_ahead()) return;
  const visit here(*this);
  begin();
  is_plain_ = may_be_plain() && get_promises();
  // If its stream has no slab yet, the request waits for its turn. If it waited for a slab ahead of its turn, so would all requests queued
  // after it.
  if (is_plain_ || is_write_ || stream_ == 0) start_waves();
  end_if_done();
}

// If the range may change before the stream reaches it, the write is treated as a write to the whole file.
void stream_operation::note_write() {
  write_ = {&admitted_.file().source(), 0, ~std::uint64_t{0}};
  if (asked_.constant_arguments) write_ = {write_.to, static_cast<std::uint64_t>(fixed_.offset), fixed_.length};
  if (passes_early_) write_.passes_early = &block_;
  runtime_->stream_watch().add_write(write_);
}

status stream_operation::find_room(const seen_allocation& seen) {
  const auto* base = seen.base;
  auto size = seen.size;
  if (base == nullptr) {  // the memory is registered and was not looked up
    const auto facts = runtime_->memory().describe(asked_.memory);
    if (!facts) return facts.error();
    base = static_cast<const std::byte*>(facts->base);
    size = facts->size;
  }
  room_ = size - static_cast<std::uint64_t>(static_cast<const std::byte*>(asked_.memory) - base);
  // A range that consists of several mappings is longer than the first mapping. A range that is too long fails when the stream reaches it.
  const auto skip = static_cast<std::uint64_t>(std::max<std::int64_t>(memory_offset_of(asked_), 0));
  const std::uint64_t asked = skip + *asked_.length;
  if (asked > room_ && asked >= skip && runtime_->memory().place_of(asked_.memory, asked)) room_ = asked;
  return {};
}

// The request runs as soon as its first entry is enqueued. Each wait depends only on earlier entries in the stream, because the driver may
// not accept the rest until the stream is idle.
status stream_operation::put_onto(device::session& session) {
  const auto on = asked_.stream;
  std::array<std::byte*, stream_block::waves_at_once> slabs{};
  if (is_plain_) {
    const std::lock_guard guard(lock_);
    std::ranges::transform(lines_, slabs.begin(), &line::slab);
  }
  status outcome;
  for (std::size_t i = 0; outcome.ok() && i < block_.waves(); ++i) {
    outcome = is_plain_ ? block_.put_plain_wave(session, on, i, segment_of(i, slabs[i % lines_.size()])) : block_.put_wave(session, on, i);
  }
  if (outcome.ok()) outcome = block_.put_end(session, on, count_on_device_);
  if (outcome.ok()) is_put_.store(true, std::memory_order_release);
  return outcome;
}

stream_operation::given_up stream_operation::give_up(device::session& session) {
  bool is_told = false;
  {
    std::unique_lock guard(lock_);
    is_told = stage_ >= stage::due;
    if (is_told) idle_.wait(guard, [this] { return stage_ == stage::told; });
    go_to(stage::given_up);
    needed_ = 0;
    if (memory_ != nullptr && !is_told) {
      block_.let_pass(copied_);
      block_.let_go_on();
    }
  }
  const bool passed = or_no_memory([&] { return session.synchronize(asked_.stream); }).ok();
  {
    std::unique_lock guard(lock_);
    idle_.wait(guard, [this] { return carried_now_ == 0; });
    for (auto& each : lines_) {
      if (memory_ != nullptr) memory_->forget(block_.size(), each.heir);
      auto* const slab = each.release();
      if (slab == nullptr) continue;
      passed ? memory_->put_slab(block_.size(), slab) : memory_->lose(block_.size(), slab);
    }
  }
  if (write_.to != nullptr) runtime_->stream_watch().remove_write(write_);
  if (memory_ != nullptr) {
    memory_->forget(block_.size(), *this);
    memory_->wake(block_.size());
    if (!passed) memory_->lose(block_.size(), block_.memory());
    memory_->leave(block_.size(), lines_.size(), passed ? block_.memory() : nullptr);
  }
  // A thread that is about to call resume() or look() also holds a reference, so the contents are moved out.
  std::shared_ptr<runtime> kept;
  admission over;
  {
    const std::lock_guard guard(lock_);
    kept = std::move(runtime_);
    over = std::move(admitted_);
  }
  return {.is_told = is_told, .lacks_bytes = is_told && is_told_early_, .has_passed = passed};
}

// --- called by the stream_watch

stream_watched::seen stream_operation::look() noexcept {
  {
    const std::lock_guard guard(lock_);
    if (stage_ == stage::given_up) return seen::over;
    const bool is_counted = stage_ == stage::counting && block_.counted();
    if (is_counted) go_to(stage::due);
    if (!is_reached_ && block_.reached() && must_wait_for_write()) return seen::nothing;
    const bool moved = is_counted || (!is_reached_ && block_.reached()) || block_.copied() > copied_;
    if (!moved && !block_.passed()) return seen::nothing;
    if (!moved) return passes_early_ && stage_ != stage::told ? seen::passed : seen::over;
  }
  const visit here(*this);
  if (stage_ == stage::given_up) return seen::over;
  if (!std::exchange(is_reached_, true)) reached();
  const auto now = std::min(block_.copied(), block_.waves());
  while (copied_ < now) copied();
  end_if_done();
  return seen::moved;
}

void stream_operation::end() noexcept {
  std::shared_ptr<runtime> kept;
  bool waits = false;
  {
    const std::lock_guard guard(lock_);
    if (stage_ != stage::given_up) kept = runtime_;  // otherwise there is nothing left to do
    waits = waits_for_slab_;
  }
  if (kept != nullptr) {
    for (auto& each : lines_) let_go(each);
    if (write_.to != nullptr) kept->stream_watch().remove_write(write_);
    if (waits) memory_->forget(block_.size(), *this);  // walks the whole list of waiters
    memory_->wake(block_.size());
    memory_->leave(block_.size(), lines_.size(), block_.memory());
    admitted_.let_go();
  }
  release();
}

// --- with lock_ held

void stream_operation::go_to(stage next) {
  assert(next > stage_);
  assert(next == stage::running || next == stage::given_up || stage_ >= stage::running);
  stage_ = next;
}

void stream_operation::reached() {
  if (stage_ == stage::queued) begin();
  start_waves();
  if (!waits_for_slab_) return;
  memory_->hurry(block_.size(), *this);
  gave_slabs_ = true;
}

void stream_operation::begin() {
  go_to(stage::running);
  if (auto problem = or_no_memory([this] { return read_values(); }); !problem.ok()) {
    drop_rest(0, std::move(problem));
  } else {
    needed_ = static_cast<std::size_t>((admitted_.what().length + block_.wave_bytes() - 1) / block_.wave_bytes());
  }
}

// A plain read must be within the file, because memory after the end of a shorter file must not change.
bool stream_operation::may_be_plain() {
  if (is_write_ || needed_ == 0 || needed_ != block_.waves()) return false;
  const auto& what = admitted_.what();
  const auto size = admitted_.file().source().size();
  return size && what.offset <= *size && what.length <= *size - what.offset;
}

bool stream_operation::get_promises() {
  std::array<stream_memory::promise, stream_block::waves_at_once> promises;
  const auto mine = std::span(promises).first(lines_.size());
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i].heir = &lines_[i].heir;
  if (!memory_->promise_slabs(block_.size(), stream_, mine)) return false;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    lines_[i].slab = mine[i].slab;
    lines_[i].state = mine[i].is_free ? line::is::open : line::is::promised;
  }
  return true;
}

void stream_operation::copied() {
  const std::size_t index = copied_++;
  if (index >= needed_) return;
  auto& which = line_of(index);
  if (is_plain_ && index + lines_.size() < needed_) {
    which.state = line::is::open;
    start_waves();
  } else if (!is_write_) {
    let_go(which);
    start_waves();
  } else if (outcome_.ok()) {
    carry(which);
  } else {
    settle_write(which);
  }
}

status stream_operation::read_values() {
  const std::int64_t skip = memory_offset_of(asked_);
  admitted_.restate({static_cast<std::byte*>(asked_.memory) + skip, *asked_.length, static_cast<std::uint64_t>(*asked_.offset), is_write_});
  if (skip < 0) return {errc::invalid_argument, "negative memory offset"};
  if (auto problem = admitted_.check({}); !problem.ok()) return problem;
  const auto& what = admitted_.what();
  const auto start = static_cast<std::uint64_t>(skip);
  if (start > room_ || what.length > room_ - start) {
    return {errc::bad_memory, fmt::format("{} bytes at {} extend past the end of their allocation, {} bytes from {}", what.length,
                                          static_cast<void*>(what.memory), room_, asked_.memory)};
  }
  if (is_write_) {
    if (auto refused = admitted_.file().source().can_drain(nullptr, what.length, what.offset); !refused.ok()) return refused;
  }
  if (what.length > block_.waves() * block_.wave_bytes()) {
    return {errc::invalid_argument, fmt::format("the length is {}, longer than it was when the request was queued", what.length)};
  }
  return {};
}

void stream_operation::start_waves() {
  while (is_plain_ && started_ < needed_ && line_of(started_).state == line::is::open) start_wave(line_of(started_).slab);
  while (!waits_for_slab_ && wants_slab()) {
    auto* const slab = memory_->take_slab(block_.size(), *this, !is_reached_);
    waits_for_slab_ = slab == nullptr;
    if (!waits_for_slab_) start_wave(slab);
  }
}

void stream_operation::start_wave(std::byte* slab) {
  const std::size_t index = started_++;
  auto& next = line_of(index);
  const std::uint64_t at = index * block_.wave_bytes();
  next.slab = slab;
  next.state = line::is::busy;
  next.offset = admitted_.what().offset + at;
  next.length = std::min(block_.wave_bytes(), admitted_.what().length - at);
  next.began_ns = now_ns();
  is_write_ ? let_copy(index, next.length) : carry(next);
}

// The segment that the device copies for a whole wave.
device::segment stream_operation::segment_of(std::size_t index, std::byte* slab) const noexcept {
  const auto& what = admitted_.what();
  const std::uint64_t at = index * block_.wave_bytes();
  std::byte* const in_slab = slab + (what.offset + at) % page;
  std::byte* const on_device = what.memory + at;
  const std::uint64_t bytes = std::min(block_.wave_bytes(), what.length - at);
  return is_write_ ? device::segment{on_device, in_slab, bytes} : device::segment{in_slab, on_device, bytes};
}

// Lets the device copy this many bytes of a wave between its memory and the slab.
void stream_operation::let_copy(std::size_t index, std::uint64_t bytes) {
  if (is_plain_) return block_.let_copy_plainly(index);
  auto segment = segment_of(index, line_of(index).slab);
  segment.bytes = bytes;
  block_.let_copy(index, segment);
}

std::uint64_t stream_operation::shortest_part() const noexcept {
  return asked_.constant_arguments ? least_part_bytes : least_part_bytes_in_turn;
}

// A request that blocks its stream is split across threads. If it runs ahead of the stream, the other threads have other requests. The
// kernel serializes writes to one file, so they form one part.
std::size_t stream_operation::crew_for(std::uint64_t bytes) const {
  if (admitted_.file().turns() != nullptr) return most_parts_;
  if (is_reached_) return std::min<std::size_t>(most_parts_, admitted_.file().mount().stream_lanes().count());
  return std::clamp<std::size_t>((bytes + part_bytes_ahead - 1) / part_bytes_ahead, 1, most_parts_);
}

// Transfers a wave between file and slab on threads that never call the device.
void stream_operation::carry(line& which) {
  const bool far = !is_write_ && admitted_.file().turns() != nullptr;
  const std::size_t crew = crew_for(which.length);
  const std::uint64_t share = std::max(round_up(which.length / crew), shortest_part());
  which.part_count = 0;
  for (std::uint64_t at = which.offset; at < which.offset + which.length;) {
    auto& next = which.parts[which.part_count++];
    const std::uint64_t end =
        which.part_count == crew ? which.offset + which.length : std::min(round_down(at) + share, which.offset + which.length);
    next.offset = at;
    next.length = end - at;
    next.next = far ? part::step::begin : part::step::carry;
    next.sent_at_once = is_reached_ && !admitted_.place().emulated();
    next.outcome = {};
    at = end;
  }
  which.parts_left = which.part_count;
  ++carried_now_;
  auto& mount = admitted_.file().mount();
  staging::work_chain ahead;
  for (std::size_t i = 0, count = which.part_count; i < count; ++i) {
    if (is_reached_) {
      mount.stream_lanes().push_urgent(mount.stream_works(), which.parts[i]);
    } else {
      ahead.add(which.parts[i]);
    }
  }
  mount.stream_lanes().push_or_run(mount.stream_works_ahead(), ahead);
}

// In file order, because nothing after a short or failed wave counts.
void stream_operation::settle_reads() {
  while (settled_ < started_ && line_of(settled_).state == line::is::carried) {
    const std::size_t index = settled_++;
    auto& which = line_of(index);
    which.state = line::is::busy;
    if (index >= needed_) {
      let_go(which);
      continue;
    }
    std::uint64_t copies = 0;
    if (is_plain_) {
      copies = settle_plain(which);
    } else {
      auto taken = take_outcome(which);
      if (taken.bytes_done < which.length) drop_rest(index + 1, std::move(taken.error));
      copies = taken.bytes_done;
    }
    if (is_told_early_ && index + 1 == needed_) {
      last_bytes_ = copies;
    } else {
      let_copy(index, copies);
    }
  }
}

// Copies the whole slab, regardless of how much was read into it.
std::uint64_t stream_operation::settle_plain(line& which) {
  io_result got;
  if (!is_cut_) got = take_outcome(which);
  if (got.bytes_done < which.length) {
    std::memset(which.slab + which.offset % page + got.bytes_done, 0, which.length - got.bytes_done);
    if (!std::exchange(is_cut_, true)) outcome_.error = std::move(got.error);
  }
  return which.length;
}

void stream_operation::settle_write(line& which) {
  ++settled_;
  if (which.state == line::is::carried) {
    if (auto carried = take_outcome(which); !carried.ok()) drop_rest(started_, std::move(carried.error));
  }
  let_go(which);
  start_waves();
}

// Adds up the bytes that the parts have transferred, up to the first part that was short or failed.
io_result stream_operation::take_outcome(line& which) {
  io_result sum;
  for (std::size_t i = 0; i < which.part_count; ++i) {
    auto& part = which.parts[i].outcome;
    sum.bytes_done += part.bytes_done;
    sum.error = std::move(part.error);
    if (!sum.ok() || part.bytes_done < which.parts[i].length) break;
  }
  outcome_.bytes_done += sum.bytes_done;
  runtime_->stats().count_piece(runtime_->paths().base(true), is_write_, sum.bytes_done, {which.began_ns, now_ns()}, !sum.ok());
  return sum;
}

// Cancels the copies of all waves starting with `needed`.
void stream_operation::drop_rest(std::size_t needed, status why) {
  needed_ = needed;
  if (outcome_.ok()) outcome_.error = std::move(why);
}

// The outcome is known once all started waves have completed and been copied, unless they may be copied later.
void stream_operation::end_if_done() {
  const bool is_copied = is_told_early_ || (is_reached_ && copied_ >= needed_);
  if (stage_ != stage::running || started_ < needed_ || settled_ < started_ || !is_copied) return;
  if (count_on_device_ == nullptr) return go_to(stage::due);
  go_to(stage::counting);
  block_.set_count(count());
  block_.let_pass(copied_);
}

std::int64_t stream_operation::count() const noexcept { return outcome_.ok() ? static_cast<std::int64_t>(outcome_.bytes_done) : -1; }

void stream_operation::let_go(line& which) {
  if (auto* const slab = which.release(); slab != nullptr) give_back(slab);
}

void stream_operation::give_back(std::byte* slab) {
  memory_->put_slab(block_.size(), slab);
  gave_slabs_ = true;
}

// --- without lock_

// Reports the outcome, then unblocks the stream. If the stream still waits for waves, it skips those not needed. If it has already passed
// them and written the count to the device, it continues.
void stream_operation::tell() {
  const auto bytes = count();
  admitted_.count(outcome_);
  range_.end();
  if (asked_.bytes_done != nullptr && count_on_device_ == nullptr)
    std::atomic_ref(*asked_.bytes_done).store(bytes, std::memory_order_release);
  if (asked_.ended) std::exchange(asked_.ended, {})(outcome_);
  const std::lock_guard guard(lock_);
  if (count_on_device_ != nullptr) {
    block_.let_go_on();
  } else {
    if (is_told_early_ && needed_ > 0) let_copy(needed_ - 1, last_bytes_);
    block_.let_pass(copied_);
  }
  go_to(stage::told);
  idle_.notify_all();
}

void stream_operation::resume(std::byte* slab) {
  const visit here(*this);
  waits_for_slab_ = false;
  if (stage_ != stage::given_up && wants_slab()) {
    start_wave(slab);
    start_waves();
  } else {
    give_back(slab);
  }
}

// Delivers a line's promised slab.
void stream_operation::inherit(std::size_t index, std::byte* slab) {
  const visit here(*this);
  auto& mine = lines_[index];
  if (stage_ == stage::given_up) return give_back(slab);
  mine.state = line::is::open;
  start_waves();
  end_if_done();
}

bool stream_operation::part::run() {
  const auto& in = owner->lines_[of];
  switch (next) {
    case step::begin:
      next = step::over;
      aim(memory_of(*this, in), length, offset);
      owner->admitted_.file().source().begin_fill(*this);
      begun();
      return true;
    case step::carry:
      outcome = or_without_memory([&] { return owner->is_write_ ? owner->write(*this, in) : owner->read(*this, in); },
                                  [] {
                                    return io_result{0, no_memory()};
                                  });
      break;
    case step::over:
      break;
  }
  owner->finished(*this);
  return true;
}

// Runs on a thread of the source, which must not destroy the operation or its file.
void stream_operation::part::ended(io_result outcome_of_fill) noexcept {
  outcome = std::move(outcome_of_fill);
  auto& mount = owner->admitted_.file().mount();
  mount.stream_lanes().push_urgent(mount.stream_works(), *this);
}

// A wave has the same alignment in its slab as in the file, so that the slab can hold the whole blocks that contain it.
std::byte* stream_operation::memory_of(const part& which, const line& in) noexcept {
  return in.slab + (which.offset - round_down(in.offset));
}

void stream_operation::finished(part& done) {
  const visit here(*this);
  auto& which = lines_[done.of];
  if (--which.parts_left > 0) return;
  if (--carried_now_ == 0) idle_.notify_all();
  which.state = line::is::carried;
  is_write_ ? settle_write(which) : settle_reads();
  end_if_done();
}

io_result stream_operation::read(const part& which, const line& from) {
  auto& file = admitted_.file().source();
  const bool past_cache = path::goes_past_cache(file, which.offset, which.length, admitted_.route().cache);
  return path::fill_slab(file, memory_of(which, from), which.length, which.offset,
                         {.way = past_cache ? path::way::past_cache : path::way::cached, .sent_at_once = which.sent_at_once},
                         [this](const status& why) { runtime_->stats().count_fallback(runtime_->paths().base(true), why.message()); });
}

io_result stream_operation::write(const part& which, const line& from) {
  io_result total;
  for (const auto& piece : plan_write(which)) {
    auto put = path::drain_slab(
        admitted_.file().source(), from.slab + (piece.offset - round_down(from.offset)), piece.length, piece.offset, {.way = piece.way},
        [this](const status& why) { runtime_->stats().count_fallback(runtime_->paths().base(true), why.message()); });
    total.bytes_done += put.bytes_done;
    total.error = std::move(put.error);
    if (!total.ok()) break;
  }
  return total;
}

// Plans which bytes pass through the page cache and which bypass it.
std::vector<planned_piece> stream_operation::plan_write(const part& which) const {
  auto& file = admitted_.file().source();
  plan_input input;
  input.offset = which.offset;
  input.length = which.length;
  input.is_write = true;
  input.on_device = true;
  input.direct_writes = file.facts().direct_writes;
  input.has_cached = file.cached_problem().ok();
  input.has_direct = file.direct_problem().ok();
  input.paths = &runtime_->paths();
  input.forced = runtime_->paths().base(true);
  input.refuses = [](path_kind, std::uint64_t, std::uint64_t) { return std::nullopt; };
  return *make_plan(input);
}

}  // namespace penstock::core
