#include "core/stream/stream_operation.hpp"

#include <algorithm>
#include <cassert>
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

}  // namespace

stream_operation::stream_operation(std::shared_ptr<runtime> with, admission admitted, const stream_request& what)
    : runtime_(std::move(with)), admitted_(std::move(admitted)), asked_(what), is_write_(admitted_.what().is_write) {
  farewell_.owner = this;
  admitted_.list();
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    for (auto& each : lines_[i].parts) {
      each.owner = this;
      each.of = i;
    }
  }
}

void stream_operation::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

// Whoever changes an operation: keeps it, since its stream may pass at once, and wakes those that wait for slabs once the lock is open.
class stream_operation::visit {
 public:
  explicit visit(stream_operation& op) : op_(op), guard_(op.lock_), runtime_(op.runtime_) { op_.retain(); }
  visit(const visit&) = delete;
  visit& operator=(const visit&) = delete;
  ~visit() {
    const bool wakes = std::exchange(op_.gave_slabs_, false);
    guard_.unlock();
    if (wakes) op_.memory_->wake(op_.block_.size());
    op_.release();
  }

 private:
  stream_operation& op_;
  std::unique_lock<std::mutex> guard_;
  std::shared_ptr<runtime> runtime_;  // with the memory
};

// --- while it is queued

status stream_operation::prepare(const staging::place& place) {
  auto& session = place.via->session();
  emulated_ = place.emulated();
  if (auto problem = find_room(); !problem.ok()) return problem;
  block_ = stream_block(std::min<std::uint64_t>(*asked_.length, room_), is_write_);
  if (asked_.bytes_done != nullptr) {
    const auto where = runtime_->memory().place_of(asked_.bytes_done, sizeof(std::int64_t));
    if (!where) return where.error();
    if (where->on_device()) count_on_device_ = asked_.bytes_done;
  }
  // Now: once a stream is held, it would wait for it.
  if (auto problem = session.prepare_scatter(); !problem.ok()) return problem;
  auto& memory = admitted_.file().mount().stream_memory_of(place);
  const auto block = memory.enter(block_.size(), session);
  if (!block) return block.error();
  block_.lie_in(*block);
  memory_ = &memory;
  return {};
}

status stream_operation::find_room() {
  const auto facts = runtime_->memory().describe(asked_.memory);
  if (!facts) return facts.error();
  room_ = facts->size - static_cast<std::uint64_t>(static_cast<std::byte*>(asked_.memory) - static_cast<std::byte*>(facts->base));
  // A range of several mappings is longer than the first; one that is too long fails when the stream gets there.
  const auto skip = static_cast<std::uint64_t>(std::max<std::int64_t>(memory_offset_of(asked_), 0));
  const std::uint64_t asked = skip + *asked_.length;
  if (asked > room_ && asked >= skip && runtime_->memory().place_of(asked_.memory, asked)) room_ = asked;
  return {};
}

// From the first call on it is under way: each wait depends only on what is on the stream before it, since the driver may not let the rest
// in until the stream is quiet.
status stream_operation::put_onto(device::session& session) {
  const auto on = asked_.stream;
  auto outcome = put_call(session, &called<&stream_operation::reached>);
  for (std::size_t i = 0; outcome.ok() && i < block_.waves(); ++i) {
    outcome = block_.put_wave(session, on, i);
    if (outcome.ok()) outcome = put_call(session, &called<&stream_operation::copied>);
  }
  if (outcome.ok() && is_write_) outcome = block_.put_wait_for_end(session, on);
  if (outcome.ok() && count_on_device_ != nullptr) outcome = block_.put_count(session, on, count_on_device_);
  return outcome.ok() ? session.call(on, &stream_operation::passed, this) : outcome;
}

status stream_operation::put_call(device::session& session, void (*function)(void*)) {
  {
    const std::lock_guard guard(lock_);
    ++calls_to_come_;
  }
  auto outcome = or_no_memory([&] { return session.call(asked_.stream, function, this); });
  if (!outcome.ok()) {
    const std::lock_guard guard(lock_);
    --calls_to_come_;
  }
  return outcome;
}

bool stream_operation::give_up(device::session& session) {
  {
    const std::lock_guard guard(lock_);
    go_to(stage::given_up);
    needed_ = 0;
    if (memory_ != nullptr) block_.let_pass(-1, copied_);
  }
  const bool passed = or_no_memory([&] { return session.synchronize(asked_.stream); }).ok();
  {
    std::unique_lock guard(lock_);
    idle_.wait(guard, [this] { return carried_now_ == 0; });
    for (auto& each : lines_) {
      auto* const slab = std::exchange(each.slab, nullptr);
      if (slab == nullptr) continue;
      passed ? memory_->put_slab(block_.size(), slab) : memory_->lose(block_.size(), slab);
    }
  }
  if (memory_ != nullptr) {
    memory_->forget(block_.size(), *this);
    memory_->wake(block_.size());
    if (!passed) memory_->lose(block_.size(), block_.memory());
    memory_->leave(block_.size(), passed ? block_.memory() : nullptr);
  }
  // Where the stream may still get there, this stays for its calls, with nothing in it. Whoever is about to resume it keeps it too.
  std::shared_ptr<runtime> kept;
  admission over;
  bool gone = false;
  {
    const std::lock_guard guard(lock_);
    kept = std::move(runtime_);
    over = std::move(admitted_);
    go_to(stage::left);
    gone = calls_to_come_ == 0;
  }
  if (gone) release();
  return passed;
}

// --- called by the stream

template <void (stream_operation::*step)()>
void stream_operation::called(void* self) {
  const staging::worker_scope borrowed;  // no engine may end on this thread
  auto& op = *static_cast<stream_operation*>(self);
  const visit here(op);
  if (--op.calls_to_come_ == 0 && op.stage_ == stage::left) op.release();
  (op.*step)();
}

void stream_operation::passed(void* self) {
  const staging::worker_scope borrowed;
  auto& op = *static_cast<stream_operation*>(self);
  const auto kept = op.runtime_;  // the operation may be gone before push_urgent() returns
  op.admitted_.count(op.outcome_);
  if (op.asked_.bytes_done != nullptr && op.count_on_device_ == nullptr)
    std::atomic_ref(*op.asked_.bytes_done).store(op.block_.count(), std::memory_order_release);
  if (op.asked_.ended) op.asked_.ended(op.outcome_);
  // Not where callbacks run: one of them may be closing the file, which waits for this.
  op.admitted_.file().mount().lanes().push_urgent(op.farewell_.list, op.farewell_);
}

bool stream_operation::farewell::run() {
  owner->memory_->forget(owner->block_.size(), *owner);
  owner->memory_->leave(owner->block_.size(), owner->block_.memory());
  owner->admitted_.let_go();
  owner->release();
  return true;
}

// --- with the lock held

void stream_operation::go_to(stage next) {
  assert(next > stage_);
  assert(next != stage::ended || stage_ == stage::running);
  assert((next == stage::left) == (stage_ == stage::given_up));
  stage_ = next;
}

void stream_operation::reached() {
  if (stage_ != stage::queued) return;
  go_to(stage::running);
  if (auto problem = or_no_memory([this] { return read_values(); }); !problem.ok()) {
    drop_rest(0, std::move(problem));
  } else {
    needed_ = static_cast<std::size_t>((admitted_.what().length + block_.wave_bytes() - 1) / block_.wave_bytes());
    start_waves();
  }
  end_if_done();
}

void stream_operation::copied() {
  const std::size_t index = copied_++;
  if (index >= needed_) return;
  auto& which = line_of(index);
  if (!is_write_) {
    let_go(which);
    start_waves();
  } else if (outcome_.ok()) {
    carry(which);
  } else {
    settle_write(which);
  }
  end_if_done();
}

status stream_operation::read_values() {
  const std::int64_t skip = memory_offset_of(asked_);
  admitted_.restate({static_cast<std::byte*>(asked_.memory) + skip, *asked_.length, static_cast<std::uint64_t>(*asked_.offset), is_write_});
  if (skip < 0) return {errc::invalid_argument, "negative memory offset"};
  if (auto problem = admitted_.check({}); !problem.ok()) return problem;
  const auto& what = admitted_.what();
  const auto start = static_cast<std::uint64_t>(skip);
  if (start > room_ || what.length > room_ - start) {
    return {errc::bad_memory, fmt::format("{} bytes at {} reach past the end of their allocation, {} bytes from {}", what.length,
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
  while (!waits_for_slab_ && started_ < needed_) {
    auto& next = line_of(started_);
    if (next.slab != nullptr) return;
    next.slab = memory_->take_slab(block_.size(), *this);
    waits_for_slab_ = next.slab == nullptr;
    if (!waits_for_slab_) start_wave(started_++);
  }
}

void stream_operation::start_wave(std::size_t index) {
  auto& next = line_of(index);
  const std::uint64_t at = index * block_.wave_bytes();
  next.offset = admitted_.what().offset + at;
  next.length = std::min(block_.wave_bytes(), admitted_.what().length - at);
  next.carried = false;
  next.began_ns = now_ns();
  is_write_ ? let_copy(index, next.length) : carry(next);
}

// Lets the device copy so many bytes of a wave, between its memory and the slab.
void stream_operation::let_copy(std::size_t index, std::uint64_t bytes) {
  const auto& which = line_of(index);
  std::byte* const in_slab = which.slab + which.offset % page;
  std::byte* const on_device = admitted_.what().memory + (which.offset - admitted_.what().offset);
  block_.let_copy(index, is_write_ ? device::segment{on_device, in_slab, bytes} : device::segment{in_slab, on_device, bytes});
}

// Between file and slab, by the threads that never call the device. Writes to one file take turns in the kernel: one part.
void stream_operation::carry(line& which) {
  const bool far = !is_write_ && admitted_.file().turns() != nullptr;
  const std::size_t crew = far         ? most_parts
                           : is_write_ ? 1
                                       : std::min<std::size_t>(most_parts, admitted_.file().mount().stream_lanes().count());
  const std::uint64_t share = std::max(round_up(which.length / crew), least_part_bytes);
  which.part_count = 0;
  for (std::uint64_t at = which.offset; at < which.offset + which.length;) {
    auto& next = which.parts[which.part_count++];
    const std::uint64_t end =
        which.part_count == crew ? which.offset + which.length : std::min(round_down(at) + share, which.offset + which.length);
    next.offset = at;
    next.length = end - at;
    next.next = far ? part::step::begin : part::step::carry;
    next.outcome = {};
    at = end;
  }
  which.parts_left = which.part_count;
  ++carried_now_;
  for (std::size_t i = 0; i < which.part_count; ++i) admitted_.file().mount().stream_lanes().push_urgent(parts_, which.parts[i]);
}

// In file order, since what comes after a short or failed wave does not count.
void stream_operation::settle_reads() {
  while (settled_ < started_ && line_of(settled_).carried) {
    const std::size_t index = settled_++;
    auto& which = line_of(index);
    which.carried = false;
    if (index >= needed_) {
      let_go(which);
      continue;
    }
    auto [bytes, problem] = take_outcome(which);
    if (bytes < which.length) drop_rest(index + 1, std::move(problem));
    let_copy(index, bytes);
  }
}

void stream_operation::settle_write(line& which) {
  ++settled_;
  if (which.carried) {
    if (auto carried = take_outcome(which); !carried.ok()) drop_rest(started_, std::move(carried.error));
  }
  let_go(which);
  start_waves();
}

// What its parts have moved, up to the first that was short or failed.
io_result stream_operation::take_outcome(line& which) {
  io_result sum;
  for (std::size_t i = 0; i < which.part_count; ++i) {
    auto& [moved, error] = which.parts[i].outcome;
    sum.bytes_done += moved;
    sum.error = std::move(error);
    if (!sum.ok() || moved < which.parts[i].length) break;
  }
  outcome_.bytes_done += sum.bytes_done;
  runtime_->stats().count_piece(runtime_->paths().base(true), is_write_, sum.bytes_done, {which.began_ns, now_ns()}, !sum.ok());
  return sum;
}

// Waves from `needed` on are not to be copied.
void stream_operation::drop_rest(std::size_t needed, status why) {
  needed_ = needed;
  if (outcome_.ok()) outcome_.error = std::move(why);
}

// Everything that was started is over: lets the stream pass the waves that are not needed.
void stream_operation::end_if_done() {
  if (stage_ != stage::running || started_ < needed_ || settled_ < started_ || copied_ < needed_) return;
  go_to(stage::ended);
  block_.let_pass(outcome_.ok() ? static_cast<std::int64_t>(outcome_.bytes_done) : -1, copied_);
}

void stream_operation::let_go(line& which) {
  if (which.slab == nullptr) return;
  memory_->put_slab(block_.size(), std::exchange(which.slab, nullptr));
  gave_slabs_ = true;
}

// --- without

void stream_operation::resume() {
  const visit here(*this);
  waits_for_slab_ = false;
  start_waves();
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

// On a thread of the source's, where neither the operation nor its file may end.
void stream_operation::part::ended(io_result outcome_of_fill) noexcept {
  outcome = std::move(outcome_of_fill);
  owner->admitted_.file().mount().stream_lanes().push_urgent(owner->parts_, *this);
}

// In a slab a wave lies as in the file, so that whole blocks around it fit.
std::byte* stream_operation::memory_of(const part& which, const line& in) noexcept {
  return in.slab + (which.offset - round_down(in.offset));
}

void stream_operation::finished(part& done) {
  const visit here(*this);
  auto& which = lines_[done.of];
  if (--which.parts_left > 0) return;
  if (--carried_now_ == 0) idle_.notify_all();
  which.carried = true;
  is_write_ ? settle_write(which) : settle_reads();
  end_if_done();
}

io_result stream_operation::read(const part& which, const line& from) {
  auto& file = admitted_.file().source();
  const bool past_cache = path::goes_past_cache(file, which.offset, which.length, admitted_.route().cache);
  return path::fill_slab(file, memory_of(which, from), which.length, which.offset, {.past_cache = past_cache, .sent_at_once = !emulated_},
                         [this](const status& why) { runtime_->stats().count_fallback(runtime_->paths().base(true), why.message()); });
}

io_result stream_operation::write(const part& which, const line& from) {
  io_result total;
  for (const auto& piece : plan_write(which)) {
    auto put = path::drain_slab(admitted_.file().source(), from.slab + (piece.offset - round_down(from.offset)), piece.length, piece.offset,
                                {.past_cache = piece.bypass_cache}, [this](const status& why) {
                                  runtime_->stats().count_fallback(runtime_->paths().base(true), why.message());
                                });
    total.bytes_done += put.bytes_done;
    total.error = std::move(put.error);
    if (!total.ok()) break;
  }
  return total;
}

// What goes through the page cache and what past it.
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
