#include "kv/put_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/no_memory.hpp"
#include "kv/checksum.hpp"
#include "staging/worker.hpp"

namespace penstock::kv {

namespace {

// Reserves room for this many more elements, so that push_back cannot fail.
template <class T>
void make_room(std::vector<T>& in, std::size_t more) {
  if (in.capacity() - in.size() < more) in.reserve(std::max(in.size() + more, 2 * in.capacity()));
}

// Returns nothing if the CPU cannot access all of the value.
std::optional<std::uint64_t> checksum_of(const engine& with, std::span<const memory_piece> pieces) {
  checksum sum;
  for (const memory_piece& each : pieces) {
    const auto at = with.cpu_address(each.memory, each.length);
    if (!at) return std::nullopt;
    sum.add({static_cast<const std::byte*>(*at), each.length});
  }
  return sum.value();
}

}  // namespace

void put_queue::add(put_operation& op) {
  const std::lock_guard guard(lock_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  added_.push_back(&op);
  give_number(op);
  for (const key_part& each : op.parts_) bytes_waiting_ += each.length;
  wake_.notify_one();
}

void put_queue::stop() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  const std::lock_guard guard(lock_);
  stopping_ = false;
}

void put_queue::add_to(store_stats& told) const {
  const std::lock_guard guard(lock_);
  told.put_bytes_under_way = bytes_under_way_ + bytes_on_streams_;
  told.put_bytes_waiting = bytes_waiting_;
}

// --- in stream order, on the calling thread

void put_queue::add_on_stream(put_operation& op, void* stream) {
  std::list<round> made(1);
  round& mine = made.front();
  mine.on = stream;
  std::size_t requests = 0;
  for (const key_part& each : op.parts_) requests += each.pieces.size();
  mine.puts.reserve(op.parts_.size());
  mine.requests.reserve(requests);
  mine.outcomes.resize(requests);
  {
    const std::lock_guard guard(lock_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    give_number(op);
  }
  for (std::size_t i = 0, count = op.parts_.size(); i < count; ++i) {
    const status placed = or_no_memory([&] { return place_on_stream(mine, {&op, i}); });
    if (!placed.ok()) refuse({&op, i}, placed);
  }
  if (mine.puts.empty()) return;
  {
    const std::lock_guard guard(lock_);
    bytes_on_streams_ += mine.bytes;
    on_streams_.splice(on_streams_.end(), made);
  }
  queue_on_stream(mine);
}

// Cannot wait for room, because the stream might wait for the caller.
status put_queue::place_on_stream(round& into, const put& next) {
  const key_part& part = part_of(next);
  if (status wrong = check(next, into.on); !wrong.ok()) return wrong;
  auto coming = std::make_unique<coming_value>();
  coming->stream = *into.on;
  coming->number = next.number();
  const auto room = to_.room_for(part.length);
  if (!room) return room.error();
  if (!room->has_value()) return no_space_for(part.length);
  const value_facts facts{0, (*room)->offset, part.length, {}};
  if (status announced = or_no_memory([&]() -> status { return to_.announce(*coming, part.key, facts), status(); }); !announced.ok()) {
    to_.give_back(facts.place());
    return announced;
  }
  add_requests(into, {next, facts, into.requests.size(), 0, std::move(coming)});
  return {};
}

void put_queue::queue_on_stream(round& of) {
  of.left.store(of.requests.size() + 1);
  for (const placed_put& each : of.puts) {
    auto& entry = each.coming->value.value();
    for (std::size_t i = each.first_request; i < each.first_request + each.requests; ++i) {
      const auto ended = [this, &of, &entry, i](const io_result& outcome) {
        if (!outcome.ok()) entry.set_failed();  // before later gets on this stream complete
        of.outcomes[i] = outcome;
        one_less(of);
      };
      const std::size_t length = of.requests[i].length;
      const status queued = or_no_memory([&] {
        stream_request one{.stream = *of.on, .memory = of.requests[i].memory, .length = &length, .offset = &of.requests[i].offset};
        one.constant_arguments = true;
        one.passes_early = true;
        one.ended = ended;
        return to_.data().write_on_stream(one);
      });
      if (!queued.ok()) ended({0, queued});
    }
    if (!entry.failed()) to_.show(*each.coming);
  }
  one_less(of);
}

void put_queue::one_less(round& of) {
  if (of.left.fetch_sub(1) > 1) return;
  const std::lock_guard guard(lock_);
  of.has_ended = true;
  wake_.notify_one();
}

// --- the worker thread

void put_queue::run() {
  staging::become_worker("penstock-kv-put");
  std::unique_lock guard(lock_);
  while (true) {
    take_next();
    if (front_has_ended()) {
      guard.unlock();
      finish(rounds_, rounds_.begin());
      guard.lock();
    } else if (const auto ended = ended_on_stream(); ended != on_streams_.end()) {
      guard.unlock();
      finish(on_streams_, ended);
      guard.lock();
    } else if (may_begin()) {
      guard.unlock();
      begin_round();
      guard.lock();
    } else if (stopping_ && rounds_.empty()) {
      return;
    } else {
      wake_.wait(guard);
    }
  }
}

// Call with the lock held.
void put_queue::take_next() {
  if (next_.op != nullptr || added_.empty()) return;
  next_ = {added_.front(), 0};
  keys_ = next_.op->parts_.size();
  added_.pop_front();
}

bool put_queue::front_has_ended() const noexcept { return !rounds_.empty() && rounds_.front().has_ended; }

// Returns a call in stream order whose bytes are in the file, unless a put that was called earlier is not recorded yet.
std::list<put_queue::round>::iterator put_queue::ended_on_stream() noexcept {
  const put_operation* const oldest = !rounds_.empty()      ? rounds_.front().puts.front().what.op
                                      : next_.op != nullptr ? next_.op
                                      : !added_.empty()     ? added_.front()
                                                            : nullptr;
  return std::ranges::find_if(on_streams_, [&](const round& each) {
    return each.has_ended && (oldest == nullptr || each.puts.front().what.op->number_ < oldest->number_);
  });
}

bool put_queue::may_begin() const noexcept {
  if (next_.op == nullptr) return false;
  return rounds_.empty() || (!no_room_ && bytes_under_way_ + part_of(next_).length <= most_bytes_);
}

void put_queue::begin_round() {
  std::list<round> made;
  or_without_memory([&] { made.emplace_back(); }, [] {});
  if (made.empty()) {
    const std::uint64_t length = part_of(next_).length;
    refuse(next_, no_memory());
    go_on(length);
    return;
  }
  gather(made.front());
  if (made.front().puts.empty()) return;
  {
    const std::lock_guard guard(lock_);
    bytes_under_way_ += made.front().bytes;
    rounds_.splice(rounds_.end(), made);
  }
  submit(rounds_.back());
}

// Collects puts up to the limits on free space and on bytes in flight.
void put_queue::gather(round& into) {
  while (next_.op != nullptr) {
    const std::uint64_t length = part_of(next_).length;
    const std::uint64_t others = bytes_under_way_ + into.bytes;  // changed by this thread only
    if (others > 0 && others + length > most_bytes_) return;
    const bool is_placed = or_without_memory([&] { return place(into, next_); },
                                             [&] {
                                               refuse(next_, no_memory());
                                               return true;
                                             });
    if (!is_placed) return;
    go_on(length);
  }
}

// Moves on to the next key. length: of the current key's value. The operation may already be destroyed if its last key was refused.
void put_queue::go_on(std::uint64_t length) noexcept {
  if (++next_.index == keys_) next_ = {nullptr, 0};
  const std::lock_guard guard(lock_);
  bytes_waiting_ -= length;
  take_next();
}

status put_queue::check(const put& next, const stream_order& on) const {
  const key_part& part = part_of(next);
  if (status stopped = next.op->stop_reason(); !stopped.ok()) return stopped;
  if (status wrong = check_key(part.key); !wrong.ok()) return wrong;
  if (part.length == 0) return {errc::invalid_argument, "a value must be at least one byte long"};
  const std::uint64_t capacity = to_.capacity_bytes();
  if (part.length > capacity)
    return {errc::invalid_argument, fmt::format("the value of {} bytes is larger than the store's capacity of {}", part.length, capacity)};
  if (!on) return {};
  for (const memory_piece& piece : part.pieces) {
    if (auto place = kv::place_on_stream(next.op->runtime().memory(), piece); !place) return place.error();
  }
  return {};
}

status put_queue::no_space_for(std::uint64_t length) const {
  return {errc::no_space,
          fmt::format("{} has no {} contiguous bytes free: the other values are being read or written", to_.path(), length)};
}

// Returns true if the put was added to the round or has failed, and false if it must wait for another round to complete. If this throws,
// neither has happened.
bool put_queue::place(round& into, const put& next) {
  const key_part& part = part_of(next);
  if (const status wrong = check(next, {}); !wrong.ok()) return refuse(next, wrong), true;
  make_room(into.requests, part.pieces.size());
  make_room(into.puts, 1);
  const auto room = to_.room_for(part.length);
  if (!room) return refuse(next, room.error()), true;
  if (!room->has_value()) {
    no_room_ = !into.puts.empty() || !rounds_.empty();
    if (no_room_) return false;
    return refuse(next, no_space_for(part.length)), true;
  }
  add_requests(into, {next, {0, (*room)->offset, part.length, {}}, into.requests.size()});
  return true;
}

// The round has room for them, so this cannot fail.
void put_queue::add_requests(round& into, placed_put placed) {
  const key_part& part = part_of(placed.what);
  auto offset = static_cast<std::int64_t>(placed.facts.offset);
  for (const memory_piece& piece : part.pieces) {
    into.requests.push_back({&to_.data(), piece.memory, piece.length, offset, true});
    offset += static_cast<std::int64_t>(piece.length);
  }
  placed.requests = into.requests.size() - placed.first_request;
  into.puts.push_back(std::move(placed));
  into.bytes += part.length;
}

// Computes the checksums while the bytes are being written. The engine's callback thread is not used for this, because users' callbacks may
// block it.
void put_queue::submit(round& of) {
  of.left.store(of.requests.size());
  of.running = engine_.submit(of.requests, {}, {}, [this, &of](std::size_t, const io_result&) { one_less(of); });
  if (!checksums_) return;
  for (placed_put& each : of.puts) each.facts.checksum = checksum_of(engine_, part_of(each.what).pieces);
}

void put_queue::finish(std::list<round>& from, std::list<round>::iterator ended) {
  or_without_memory([&] { record(*ended); },
                    [&] {
                      for (const placed_put& each : ended->puts) {
                        give_back(each);
                        refuse(each.what, no_memory());
                      }
                    });
  no_room_ = false;
  std::list<round> gone;
  const std::lock_guard guard(lock_);
  (ended->on ? bytes_on_streams_ : bytes_under_way_) -= ended->bytes;
  gone.splice(gone.end(), from, ended);
}

void put_queue::give_back(const placed_put& placed) noexcept {
  placed.coming != nullptr ? to_.withdraw(*placed.coming) : to_.give_back(placed.facts.place());
}

// If this throws, none of the puts has completed.
void put_queue::record(round& ended) {
  if (!ended.on) ended.outcomes = ended.running.wait();
  const auto& outcomes = ended.outcomes;
  std::vector<new_value> values;
  std::vector<put> written;
  std::vector<const placed_put*> failed;
  std::vector<const placed_put*> replaced;
  values.reserve(ended.puts.size());
  written.reserve(ended.puts.size());
  failed.reserve(ended.puts.size());
  replaced.reserve(ended.puts.size());
  const auto error_of = [&](const placed_put& of) {
    const auto begin = outcomes.begin() + static_cast<std::ptrdiff_t>(of.first_request);
    const auto end = begin + static_cast<std::ptrdiff_t>(of.requests);
    const auto wrong = std::find_if(begin, end, [](const io_result& each) { return !each.ok(); });
    return wrong == end ? status() : wrong->error;
  };
  for (const placed_put* each : in_order_of_records(ended)) {
    if (!error_of(*each).ok()) {
      failed.push_back(each);
    } else if (each->coming != nullptr && each->coming->is_superseded) {
      replaced.push_back(each);
    } else {
      values.push_back({part_of(each->what).key, each->facts, each->what.number(), each->coming.get()});
      written.push_back(each->what);
    }
  }
  to_.commit(values);
  for (const placed_put* each : failed) {
    give_back(*each);
    refuse(each->what, error_of(*each));
  }
  for (const placed_put* each : replaced) {
    give_back(*each);
    end(each->what, {outcome::done, each->facts.length, {}});
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].error.ok()) {
      end(written[i], {outcome::done, values[i].facts.length, {}});
    } else {
      refuse(written[i], values[i].error);
    }
  }
}

// In reverse order, so that the first key of a call is the most recently used when the store is reopened. If a key occurs twice, its
// later value is kept.
std::vector<const put_queue::placed_put*> put_queue::in_order_of_records(const round& ended) {
  std::vector<const placed_put*> order;
  order.reserve(ended.puts.size());
  std::unordered_set<std::string_view> keys;
  for (const placed_put& each : ended.puts) {
    order.push_back(&each);
    keys.insert(part_of(each.what).key);
  }
  if (keys.size() == order.size()) std::ranges::reverse(order);
  return order;
}

// Sets a result, and completes the operation with its last key. All its keys are then marked as used, the first one as the most recent,
// regardless of how many rounds they took.
void put_queue::end(const put& what, key_result outcome) noexcept {
  (*what.op->results())[what.index] = std::move(outcome);
  if (--what.op->open_ > 0) return;
  const auto& parts = what.op->parts_;
  for (auto each = parts.rbegin(); each != parts.rend(); ++each) (void)to_.use(each->key);
  what.op->end();
}

}  // namespace penstock::kv
