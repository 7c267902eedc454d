#include "core/stream_operation.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/blocking.hpp"
#include "core/mount.hpp"
#include "path/slab_io.hpp"
#include "staging/worker.hpp"

namespace penstock::core {

namespace {

constexpr std::uint64_t page = path::direct_alignment;
using path::round_down;
using path::round_up;

// In a slab a wave lies as in the file, so that whole blocks around it can be read past the page cache: a page is lost at each end.
constexpr std::uint64_t most_bytes(stream_memory::kind of) { return stream_memory::slab_bytes(of) - 2 * page; }

// Of a table. The kernel gives each segment a block of threads; 256 keep PCIe busy.
constexpr std::size_t most_segments = 256;
constexpr std::uint64_t least_segment_bytes = 4096;

constexpr std::uint64_t least_part_bytes = std::uint64_t{128} << 10;

std::int64_t memory_offset_of(const stream_request& what) { return what.memory_offset != nullptr ? *what.memory_offset : 0; }

void store(std::uint32_t& word, std::uint32_t value) { std::atomic_ref(word).store(value, std::memory_order_release); }

}  // namespace

stream_operation::stream_operation(std::shared_ptr<runtime> with, admission admitted, const stream_request& what)
    : runtime_(std::move(with)), admitted_(std::move(admitted)), asked_(what), is_write_(admitted_.what().is_write) {
  farewell_.owner = this;
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
    if (wakes) op_.memory_->wake(op_.layout_.size);
    op_.release();
  }

 private:
  stream_operation& op_;
  std::unique_lock<std::mutex> guard_;
  std::shared_ptr<runtime> runtime_;  // with the memory
};

// --- while it is queued

status stream_operation::queue(const std::shared_ptr<runtime>& with, const std::shared_ptr<file_core>& file, const stream_request& what,
                               bool is_write) {
  if (what.memory == nullptr) return {errc::bad_memory, "null pointer"};
  if (what.length == nullptr || what.offset == nullptr) return {errc::invalid_argument, "length and offset pointers must not be null"};
  if (with->forked()) return {errc::forked, "the engine belongs to the parent process"};
  const auto place = with->memory().place_of(what.memory, 1);
  if (!place) return place.error();
  if (!place->on_device()) return {errc::unsupported, "a stream-ordered request needs memory of the stream's device"};
  if (auto problem = file->mount().lanes().ready(); !problem.ok()) return problem;
  if (auto problem = file->mount().stream_lanes().ready(); !problem.ok()) return problem;
  admission admitted;  // its range is known when the stream gets there
  if (auto refused = admitted.enter(*with, *file, {nullptr, 0, 0, is_write}, file); !refused.ok()) return refused;
  (void)file->view();  // opened now, while nothing is held

  auto* made = new stream_operation(with, std::move(admitted), what);
  auto outcome = or_no_memory([&] { return made->prepare(*place); });
  if (outcome.ok()) outcome = or_no_memory([&] { return made->put_onto(place->via->session()); });
  if (outcome.ok()) return outcome;
  // As the last means to keep the order, the host waits.
  if (made->give_up(place->via->session())) {
    with->stats().count_fallback(with->paths().base(true), outcome.message());
    outcome = or_no_memory([&] { return run_now(*with, *file, what, is_write); });
  }
  return outcome.ok() ? outcome : outcome.with_context("stream-ordered request");
}

status stream_operation::prepare(const staging::place& place) {
  emulated_ = place.emulated();
  const auto skip = static_cast<std::uint64_t>(std::max<std::int64_t>(memory_offset_of(asked_), 0));
  const auto facts = runtime_->memory().describe(asked_.memory);
  if (!facts) return facts.error();
  layout_.room = facts->size - static_cast<std::uint64_t>(static_cast<std::byte*>(asked_.memory) - static_cast<std::byte*>(facts->base));
  // A range of several mappings is longer than the first; one that is too long fails when the stream gets there.
  if (const std::uint64_t asked = skip + *asked_.length;
      asked > layout_.room && asked >= skip && runtime_->memory().place_of(asked_.memory, asked)) {
    layout_.room = asked;
  }
  const std::uint64_t most = std::min<std::uint64_t>(*asked_.length, layout_.room);
  layout_.size = most <= most_bytes(kind::small) ? kind::small : kind::large;
  layout_.wave_bytes = most_bytes(layout_.size);
  layout_.waves = static_cast<std::size_t>(std::max<std::uint64_t>((most + layout_.wave_bytes - 1) / layout_.wave_bytes, 1));
  layout_.segments =
      static_cast<std::size_t>(std::clamp<std::uint64_t>(std::min(most, layout_.wave_bytes) / least_segment_bytes, 1,
                                                         layout_.size == kind::small ? most_bytes(kind::small) / page : most_segments));
  if (asked_.bytes_done != nullptr) {
    const auto where = runtime_->memory().place_of(asked_.bytes_done, sizeof(std::int64_t));
    if (!where) return where.error();
    if (where->on_device()) count_on_device_ = asked_.bytes_done;
  }
  if (auto problem = place.via->session().prepare_scatter(); !problem.ok())
    return problem;  // now: once a stream is held, it would wait for it
  memory_ = &admitted_.file().mount().stream_memory_of(place);
  auto block = memory_->enter(layout_.size, place.via->session());
  if (!block) return block.error();
  block_ = *block;
  return {};
}

status stream_operation::put_onto(device::session& session) {
  const auto on = asked_.stream;
  status outcome = put_call(session, &stream_operation::reached);
  for (std::size_t i = 0; outcome.ok() && i < layout_.waves; ++i) {
    outcome = session.wait_value(on, &shared().turn, static_cast<std::uint32_t>(i + 1));
    if (outcome.ok()) outcome = session.scatter(table(i % waves_at_once), layout_.segments, on);
    if (outcome.ok()) outcome = put_call(session, &stream_operation::copied);
  }
  if (outcome.ok() && is_write_) outcome = session.wait_value(on, &shared().written, 1);
  if (outcome.ok() && count_on_device_ != nullptr) {
    shared().count_segment = {&shared().count, count_on_device_, sizeof(std::int64_t)};
    outcome = session.scatter(&shared().count_segment, 1, on);
  }
  // From the first call on it is under way: each wait depends only on what is on the stream before it, since the driver may not let the
  // rest in until the stream is quiet.
  if (outcome.ok()) outcome = session.call(on, &stream_operation::passed, this);
  return outcome;
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

// Drops what is under way, and waits until the stream has passed what is on it already. False: that cannot be known.
bool stream_operation::give_up(device::session& session) {
  {
    const std::lock_guard guard(lock_);
    given_up_ = true;
    stopped_ = true;
  }
  if (block_ != nullptr) {
    store(shared().turn, static_cast<std::uint32_t>(layout_.waves));
    store(shared().written, 1);
  }
  const bool passed = or_no_memory([&] { return session.synchronize(asked_.stream); }).ok();
  std::unique_lock guard(lock_);
  idle_.wait(guard, [this] { return carried_now_ == 0; });
  std::array<std::byte*, waves_at_once> slabs{};
  for (std::size_t i = 0; i < slabs.size(); ++i) slabs[i] = std::exchange(lines_[i].slab, nullptr);
  guard.unlock();
  if (memory_ != nullptr) memory_->forget(layout_.size, *this);
  for (auto* each : slabs) {
    if (each == nullptr) continue;
    passed ? memory_->give_slab(layout_.size, each) : memory_->lose(layout_.size, each);
  }
  if (block_ != nullptr) {
    if (!passed) memory_->lose(layout_.size, block_);
    memory_->leave(layout_.size, passed ? block_ : nullptr);
  }
  // Where the stream may still get there, this stays for its calls, with nothing in it. Whoever is about to resume it keeps it too.
  std::shared_ptr<runtime> kept;
  admission over;
  bool gone = false;
  {
    const std::lock_guard last(lock_);
    kept = std::move(runtime_);
    over = std::move(admitted_);
    orphaned_ = true;
    gone = calls_to_come_ == 0;
  }
  if (gone) release();
  return passed;
}

status stream_operation::run_now(runtime& with, file_core& file, const stream_request& what, bool is_write) {
  const std::int64_t skip = memory_offset_of(what);
  io_result outcome;
  if (skip < 0) {
    outcome.error = {errc::invalid_argument, "negative memory offset"};
  } else {
    outcome = run(with, file,
                  {static_cast<std::byte*>(what.memory) + skip, *what.length, static_cast<std::uint64_t>(*what.offset), is_write}, {});
  }
  const std::int64_t count = outcome.ok() ? static_cast<std::int64_t>(outcome.bytes_done) : -1;
  if (what.bytes_done != nullptr) {
    if (auto told = with.memory().copy(what.bytes_done, &count, sizeof(count)); !told.ok()) return told;
  }
  if (what.ended) what.ended(outcome);
  return {};
}

// --- called by the stream

void stream_operation::reached(void* self) {
  const staging::worker_scope borrowed;  // no engine may end on this thread
  auto& op = *static_cast<stream_operation*>(self);
  const visit here(op);
  op.came();
  if (!op.given_up_) op.begin();
}

void stream_operation::copied(void* self) {
  const staging::worker_scope borrowed;
  auto& op = *static_cast<stream_operation*>(self);
  const visit here(op);
  op.came();
  const std::size_t index = op.copied_++;
  if (op.given_up_ || index >= op.needed_) return;
  auto& which = op.lines_[index % waves_at_once];
  if (!op.is_write_) {
    op.let_go(which);
    op.start_waves();
  } else if (op.stopped_) {
    op.settle_write(which);
  } else {
    op.carry(which);
  }
  op.end_if_done();
}

void stream_operation::passed(void* self) {
  const staging::worker_scope borrowed;
  auto& op = *static_cast<stream_operation*>(self);
  const auto kept = op.runtime_;  // the operation may be gone before push_urgent() returns
  op.admitted_.count(op.outcome_);
  if (op.asked_.bytes_done != nullptr && op.count_on_device_ == nullptr)
    std::atomic_ref(*op.asked_.bytes_done).store(op.shared().count, std::memory_order_release);
  if (op.asked_.ended) op.asked_.ended(op.outcome_);
  // Not where callbacks run: one of them may be closing the file, which waits for this.
  op.admitted_.file().mount().lanes().push_urgent(op.farewell_.list, op.farewell_);
}

bool stream_operation::farewell::run() {
  owner->clean_up();
  return true;
}

void stream_operation::clean_up() {
  memory_->forget(layout_.size, *this);
  memory_->leave(layout_.size, block_);
  admitted_.let_go();
  release();
}

// --- with the lock held

void stream_operation::came() {
  if (--calls_to_come_ == 0 && orphaned_) release();
}

void stream_operation::begin() {
  if (auto problem = or_no_memory([this] { return read_values(); }); !problem.ok()) {
    stop(std::move(problem));
  } else {
    needed_ = static_cast<std::size_t>((admitted_.what().length + layout_.wave_bytes - 1) / layout_.wave_bytes);
    start_waves();
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
  if (start > layout_.room || what.length > layout_.room - start) {
    return {errc::bad_memory, fmt::format("{} bytes at {} reach past the end of their allocation, {} bytes from {}", what.length,
                                          static_cast<void*>(what.memory), layout_.room, asked_.memory)};
  }
  if (what.length > layout_.waves * layout_.wave_bytes) {
    return {errc::invalid_argument, fmt::format("the length is {}, longer than it was when the request was queued", what.length)};
  }
  return {};
}

void stream_operation::start_waves() {
  while (!stopped_ && !waits_for_slab_ && started_ < needed_) {
    auto& next = lines_[started_ % waves_at_once];
    if (next.slab != nullptr) return;
    next.slab = memory_->take_slab(layout_.size, *this);
    waits_for_slab_ = next.slab == nullptr;
    if (!waits_for_slab_) start_wave(next, started_++);
  }
}

void stream_operation::start_wave(line& next, std::uint64_t index) {
  const std::uint64_t at = index * layout_.wave_bytes;
  next.offset = admitted_.what().offset + at;
  next.length = std::min(layout_.wave_bytes, admitted_.what().length - at);
  next.carried = false;
  next.began_ns = now_ns();
  if (!is_write_) {
    carry(next);
    return;
  }
  fill_table(index % waves_at_once, next, next.length);
  store(shared().turn, static_cast<std::uint32_t>(index + 1));
}

// Between file and slab, by the threads that never call the device. Writes to one file take turns in the kernel: one part.
void stream_operation::carry(line& which) {
  const std::size_t crew = is_write_ ? 1 : std::min<std::size_t>(most_parts, admitted_.file().mount().stream_lanes().count());
  const std::uint64_t share = std::max(round_up(which.length / crew), least_part_bytes);
  which.part_count = 0;
  for (std::uint64_t at = which.offset; at < which.offset + which.length;) {
    auto& next = which.parts[which.part_count++];
    const std::uint64_t end =
        which.part_count == crew ? which.offset + which.length : std::min(round_down(at) + share, which.offset + which.length);
    next.offset = at;
    next.length = end - at;
    next.outcome = {};
    at = end;
  }
  which.parts_left = which.part_count;
  ++carried_now_;
  for (std::size_t i = 0; i < which.part_count; ++i) admitted_.file().mount().stream_lanes().push_urgent(parts_, which.parts[i]);
}

// In file order, since what comes after a short or failed wave does not count.
void stream_operation::settle_reads() {
  while (settled_ < started_ && lines_[settled_ % waves_at_once].carried) {
    const std::size_t index = settled_++;
    auto& which = lines_[index % waves_at_once];
    which.carried = false;
    if (stopped_) {
      let_go(which);
      continue;
    }
    std::uint64_t bytes = 0;
    status problem;
    for (std::size_t i = 0; i < which.part_count; ++i) {
      bytes += which.parts[i].outcome.bytes_done;
      problem = std::move(which.parts[i].outcome.error);
      if (!problem.ok() || which.parts[i].outcome.bytes_done < which.parts[i].length) break;
    }
    outcome_.bytes_done += bytes;
    runtime_->stats().count_piece(runtime_->paths().base(true), bytes, {which.began_ns, now_ns()}, !problem.ok());
    if (bytes < which.length) {
      needed_ = index + 1;
      stop(std::move(problem));
    }
    fill_table(index % waves_at_once, which, bytes);
    store(shared().turn, static_cast<std::uint32_t>(index + 1));
  }
}

void stream_operation::settle_write(line& which) {
  ++settled_;
  if (which.carried) {
    auto& done = which.parts[0].outcome;
    outcome_.bytes_done += done.bytes_done;
    runtime_->stats().count_piece(runtime_->paths().base(true), done.bytes_done, {which.began_ns, now_ns()}, !done.ok());
    if (!done.ok()) stop(done.error);
  }
  let_go(which);
  start_waves();
}

void stream_operation::stop(status why) {
  if (outcome_.ok()) outcome_.error = std::move(why);
  stopped_ = true;
  if (is_write_) needed_ = started_;
}

// Everything that was started is over: lets the stream pass the waves that are not needed. Their tables hold nothing.
void stream_operation::end_if_done() {
  if (ended_ || given_up_ || started_ < needed_ || settled_ < started_ || copied_ < needed_) return;
  ended_ = true;
  for (std::size_t i = 0; i < std::min(waves_at_once, layout_.waves); ++i) {
    std::fill_n(table(i), layout_.segments, device::segment{nullptr, nullptr, 0});
  }
  shared().count = outcome_.ok() ? static_cast<std::int64_t>(outcome_.bytes_done) : -1;
  // The stream may pass with the last of these, and the block belong to another request.
  store(shared().turn, static_cast<std::uint32_t>(layout_.waves));
  if (is_write_) store(shared().written, 1);
}

void stream_operation::let_go(line& which) {
  if (which.slab == nullptr) return;
  memory_->put_slab(layout_.size, std::exchange(which.slab, nullptr));
  gave_slabs_ = true;
}

// --- without

void stream_operation::resume() {
  const visit here(*this);
  waits_for_slab_ = false;
  if (!given_up_) start_waves();
}

bool stream_operation::part::run() {
  const auto& from = owner->lines_[of];
  outcome = or_without_memory([&] { return owner->is_write_ ? owner->write(*this, from) : owner->read(*this, from); },
                              [] {
                                return io_result{0, no_memory()};
                              });
  owner->finished(*this);
  return true;
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
  auto& kernel = runtime_->kernel();
  const auto& file = admitted_.file().view_if_open();
  const bool cold = path::is_cold(kernel, file, which.offset, which.length);
  return path::fill_slab(kernel, file, from.slab + (which.offset - round_down(from.offset)), which.length, which.offset, {cold, !emulated_},
                         [this](const status& why) { runtime_->stats().count_fallback(runtime_->paths().base(true), why.message()); });
}

io_result stream_operation::write(const part& which, const line& from) {
  io_result total;
  for (const auto& piece : plan_write(which)) {
    auto put = path::drain_slab(runtime_->kernel(), admitted_.file().view_if_open(), from.slab + (piece.offset - round_down(from.offset)),
                                piece.length, piece.offset, {.past_cache = piece.bypass_cache}, [this](const status& why) {
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
  const auto& file = admitted_.file().view_if_open();
  plan_input input;
  input.offset = which.offset;
  input.length = which.length;
  input.is_write = true;
  input.on_device = true;
  input.direct_writes = admitted_.file().wants_direct_writes();
  input.has_cached = file.cached_fd >= 0;
  input.has_direct = file.direct_fd >= 0;
  input.paths = &runtime_->paths();
  input.forced = runtime_->paths().base(true);
  input.refuses = [](path_kind, std::uint64_t, std::uint64_t) { return std::nullopt; };
  return *make_plan(input);
}

// --- tables

device::segment* stream_operation::table(std::size_t line_index) const noexcept {
  return reinterpret_cast<device::segment*>(block_ + sizeof(words)) + line_index * layout_.segments;
}

void stream_operation::fill_table(std::size_t line_index, const line& with, std::uint64_t bytes) {
  device::segment* const entries = table(line_index);
  std::byte* const in_slab = with.slab + with.offset % page;
  std::byte* const on_device = admitted_.what().memory + (with.offset - admitted_.what().offset);
  const std::uint64_t share = std::max(round_up((bytes + layout_.segments - 1) / layout_.segments), least_segment_bytes);
  for (std::size_t i = 0; i < layout_.segments; ++i) {
    const std::uint64_t start = std::min(bytes, i * share);
    const std::uint64_t length = std::min(share, bytes - start);
    entries[i] = is_write_ ? device::segment{on_device + start, in_slab + start, length}
                           : device::segment{in_slab + start, on_device + start, length};
  }
}

}  // namespace penstock::core
