#include "kv/put_queue.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/no_memory.hpp"
#include "kv/value_checksum.hpp"
#include "staging/worker.hpp"

namespace penstock::kv {

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

// --- the thread

void put_queue::run() {
  staging::become_worker("penstock-kv-put");
  std::unique_lock guard(lock_);
  while (true) {
    wake_.wait(guard, [this] { return stopping_ || !added_.empty() || front_has_ended() || may_begin(); });
    for (; !added_.empty(); added_.pop_front()) {
      for (std::size_t i = 0; i < added_.front()->parts_.size(); ++i) waiting_.push_back({added_.front(), i});
    }
    const bool ended = front_has_ended();
    if (!ended && !may_begin()) {
      if (stopping_ && rounds_.empty()) return;
      continue;
    }
    guard.unlock();
    ended ? finish_front() : begin_round();
    guard.lock();
  }
}

bool put_queue::front_has_ended() const noexcept { return !rounds_.empty() && rounds_.front()->has_ended; }

bool put_queue::may_begin() const noexcept {
  if (waiting_.empty()) return false;
  return rounds_.empty() || (!no_room_ && bytes_under_way_ + part_of(waiting_.front()).length <= most_bytes_);
}

void put_queue::begin_round() {
  auto made = std::make_unique<round>();
  gather(*made);
  if (made->puts.empty()) return;
  auto& begun = *made;
  {
    const std::lock_guard guard(lock_);
    rounds_.push_back(std::move(made));
    bytes_under_way_ += begun.bytes;
  }
  submit(begun);
}

// As many as there is room for, and as may be under way.
void put_queue::gather(round& into) {
  while (!waiting_.empty()) {
    const put next = waiting_.front();
    const std::uint64_t length = part_of(next).length;           // a put that is refused may be the last of its call, which is gone then
    const std::uint64_t others = bytes_under_way_ + into.bytes;  // which no other thread changes
    if (others > 0 && others + length > most_bytes_) return;
    if (!place(into, next)) return;
    waiting_.pop_front();
    const std::lock_guard guard(lock_);
    bytes_waiting_ -= length;
  }
}

// False: there is no room before another round has ended.
bool put_queue::place(round& into, const put& next) {
  const key_part& part = part_of(next);
  const auto refuse = [&](const status& why) {
    end(next, failed_with(why, part.key));
    return true;
  };
  if (status stopped = next.op->stop_reason(); !stopped.ok()) return refuse(stopped);
  if (status wrong = check_key(part.key); !wrong.ok()) return refuse(wrong);
  if (part.length == 0) return refuse({errc::invalid_argument, "a value has one byte or more"});
  if (part.length > to_.capacity_bytes())
    return refuse(
        {errc::invalid_argument, fmt::format("a value of {} bytes is more than the capacity of {}", part.length, to_.capacity_bytes())});
  auto room = to_.room_for(part.length);
  if (!room) return refuse(room.error());
  if (!room->has_value()) {
    no_room_ = !into.puts.empty() || !rounds_.empty();
    return no_room_ ? false
                    : refuse({errc::no_space, fmt::format("{} has no {} bytes in a row that are not being read", to_.path(), part.length)});
  }
  placed_put placed{next, {0, (*room)->offset, part.length, {}}, into.requests.size()};
  auto offset = static_cast<std::int64_t>(placed.facts.offset);
  for (const memory_piece& piece : part.pieces) {
    if (piece.length == 0) continue;
    into.requests.push_back({&to_.data(), piece.memory, piece.length, offset, true});
    offset += static_cast<std::int64_t>(piece.length);
  }
  placed.requests = into.requests.size() - placed.first_request;
  into.puts.push_back(placed);
  into.bytes += part.length;
  return true;
}

// The checksums are made while the bytes are written.
void put_queue::submit(round& of) {
  of.running = engine_.submit(of.requests, {}, [this, &of](const io_result&) {
    const std::lock_guard guard(lock_);
    of.has_ended = true;
    wake_.notify_one();
  });
  if (!checksums_) return;
  for (placed_put& each : of.puts) each.facts.checksum = checksum_of(engine_, part_of(each.what).pieces);
}

void put_queue::finish_front() {
  round& ended = *rounds_.front();
  const auto outcomes = ended.running.wait();
  std::vector<new_value> values;
  std::vector<const placed_put*> written;
  for (const placed_put& each : ended.puts) {
    status error;
    for (std::size_t i = each.first_request; i < each.first_request + each.requests && error.ok(); ++i) error = outcomes[i].error;
    if (error.ok()) {
      values.push_back({part_of(each.what).key, each.facts, {}});
      written.push_back(&each);
    } else {
      to_.give_back(each.facts.place());
      end(each.what, failed_with(error, part_of(each.what).key));
    }
  }
  to_.commit(values);
  {
    const std::lock_guard guard(lock_);
    bytes_under_way_ -= ended.bytes;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const put& what = written[i]->what;
    end(what, values[i].error.ok() ? key_result{outcome::done, values[i].facts.length, {}} : failed_with(values[i].error, values[i].key));
  }
  no_room_ = false;
  const std::lock_guard guard(lock_);
  rounds_.pop_front();
}

// The last of a call may be the last of its operation.
void put_queue::end(const put& what, key_result outcome) noexcept {
  (*what.op->results())[what.index] = std::move(outcome);
  if (--what.op->open_ == 0) what.op->end();
}

}  // namespace penstock::kv
