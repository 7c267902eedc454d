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
}

void put_queue::add_to(store_stats& told) const {
  const std::lock_guard guard(lock_);
  told.put_bytes_under_way = bytes_under_way_;
  told.put_bytes_waiting = bytes_waiting_;
}

// --- the worker thread

void put_queue::run() {
  staging::become_worker("penstock-kv-put");
  std::unique_lock guard(lock_);
  while (true) {
    take_next();
    const bool ended = front_has_ended();
    if (ended || may_begin()) {
      guard.unlock();
      ended ? finish_front() : begin_round();
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

status put_queue::check(const put& next) const {
  const key_part& part = part_of(next);
  if (status stopped = next.op->stop_reason(); !stopped.ok()) return stopped;
  if (status wrong = check_key(part.key); !wrong.ok()) return wrong;
  if (part.length == 0) return {errc::invalid_argument, "a value must be at least one byte long"};
  const std::uint64_t capacity = to_.capacity_bytes();
  if (part.length <= capacity) return {};
  return {errc::invalid_argument, fmt::format("the value of {} bytes is larger than the store's capacity of {}", part.length, capacity)};
}

// Returns true if the put was added to the round or has failed, and false if it must wait for another round to complete. If this throws,
// neither has happened.
bool put_queue::place(round& into, const put& next) {
  const key_part& part = part_of(next);
  if (const status wrong = check(next); !wrong.ok()) return refuse(next, wrong), true;
  make_room(into.requests, part.pieces.size());
  make_room(into.puts, 1);
  const auto room = to_.room_for(part.length);
  if (!room) return refuse(next, room.error()), true;
  if (!room->has_value()) {
    no_room_ = !into.puts.empty() || !rounds_.empty();
    if (no_room_) return false;
    return refuse(next, {errc::no_space,
                         fmt::format("{} has no {} contiguous bytes free: the other values are being read", to_.path(), part.length)}),
           true;
  }
  placed_put placed{next, {0, (*room)->offset, part.length, {}}, into.requests.size()};
  auto offset = static_cast<std::int64_t>(placed.facts.offset);
  for (const memory_piece& piece : part.pieces) {
    into.requests.push_back({&to_.data(), piece.memory, piece.length, offset, true});
    offset += static_cast<std::int64_t>(piece.length);
  }
  placed.requests = into.requests.size() - placed.first_request;
  into.puts.push_back(placed);
  into.bytes += part.length;
  return true;
}

// Computes the checksums while the bytes are being written. The engine's callback thread is not used for this, because users' callbacks may
// block it.
void put_queue::submit(round& of) {
  of.left.store(of.requests.size());
  of.running = engine_.submit(of.requests, {}, {}, [this, &of](std::size_t, const io_result&) {
    if (of.left.fetch_sub(1) > 1) return;
    const std::lock_guard guard(lock_);
    of.has_ended = true;
    wake_.notify_one();
  });
  if (!checksums_) return;
  for (placed_put& each : of.puts) each.facts.checksum = checksum_of(engine_, part_of(each.what).pieces);
}

void put_queue::finish_front() {
  round& ended = rounds_.front();
  or_without_memory([&] { finish(ended); },
                    [&] {
                      for (const placed_put& each : ended.puts) {
                        to_.give_back(each.facts.place());
                        refuse(each.what, no_memory());
                      }
                    });
  no_room_ = false;
  std::list<round> gone;
  const std::lock_guard guard(lock_);
  bytes_under_way_ -= ended.bytes;
  gone.splice(gone.end(), rounds_, rounds_.begin());
}

// If this throws, none of the puts has completed.
void put_queue::finish(round& ended) {
  const auto outcomes = ended.running.wait();
  std::vector<new_value> values;
  std::vector<put> written;
  std::vector<const placed_put*> failed;
  values.reserve(ended.puts.size());
  written.reserve(ended.puts.size());
  failed.reserve(ended.puts.size());
  const auto error_of = [&](const placed_put& of) {
    const auto begin = outcomes.begin() + static_cast<std::ptrdiff_t>(of.first_request);
    const auto end = begin + static_cast<std::ptrdiff_t>(of.requests);
    const auto wrong = std::find_if(begin, end, [](const io_result& each) { return !each.ok(); });
    return wrong == end ? status() : wrong->error;
  };
  for (const placed_put* each : in_order_of_records(ended)) {
    if (error_of(*each).ok()) {
      values.push_back({part_of(each->what).key, each->facts, {}});
      written.push_back(each->what);
    } else {
      failed.push_back(each);
    }
  }
  to_.commit(values);
  for (const placed_put* each : failed) {
    to_.give_back(each->facts.place());
    refuse(each->what, error_of(*each));
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
