#include "channel/connection.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::channel {

namespace {

// What a caller sends itself before it leaves the rest to the reactor, and what the reactor reads or sends before it looks at others.
constexpr std::uint64_t most_by_caller = std::uint64_t{256} << 10;
constexpr std::uint64_t most_in_turn = std::uint64_t{4} << 20;

std::uint64_t length_of(const outgoing_frame& frame) { return sizeof(frame.head) + frame.own.size() + frame.lent.size(); }

// What lies behind the first skip bytes of the frame. Returns of how many parts that is.
std::size_t parts_of(const outgoing_frame& frame, std::uint64_t skip, std::array<iovec, 3>& to) {
  const std::array<std::span<const std::byte>, 3> all{std::as_bytes(std::span(&frame.head, 1)), frame.own, frame.lent};
  std::size_t count = 0;
  for (const auto& part : all) {
    const auto rest = part.subspan(std::min<std::uint64_t>(skip, part.size()));
    skip -= part.size() - rest.size();
    if (!rest.empty()) to[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};  // an iovec of sendmsg is only read
  }
  return count;
}

status gone() { return {errc::closed, "the other end has gone"}; }

}  // namespace

std::shared_ptr<connection> connection::make(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, sys::owned_socket over,
                                             bool connecting) {
  return std::make_shared<connection>(std::move(door), std::move(with), std::move(over), connecting);
}

connection::connection(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, sys::owned_socket over, bool connecting)
    : door_(std::move(door)), reactor_(std::move(with)), socket_(std::move(over)), connecting_(connecting) {}

connection::~connection() = default;

status connection::start(std::weak_ptr<frame_user> user) {
  user_ = std::move(user);
  const std::lock_guard guard(out_lock_);
  watched_ = connecting_;
  auto token = reactor_->add(socket_.get(), shared_from_this(), connecting_);
  if (!token) return token.error();
  token_ = *token;
  return {};
}

void connection::ready(bool readable, bool writable) noexcept {
  const auto self = shared_from_this();  // what it tells of may let go of this
  {
    const std::lock_guard guard(out_lock_);  // start() has ended
    if (connecting_ && writable) {
      connecting_ = false;
      ended_ = door_->connected(socket_.get());
    }
  }
  if (writable) flush_up_to(most_in_turn);
  if (readable) read();
}

// --- what comes in

void connection::read() noexcept {
  std::uint64_t left = most_in_turn;
  while (left > 0) {
    auto problem = or_no_memory([&] { return read_some(left); });
    if (problem.code() == errc::would_block) return;
    if (problem.ok()) continue;
    end(problem);
    return;
  }
}

iovec connection::next_part() {
  if (head_bytes_ < sizeof(head_)) return {reinterpret_cast<std::byte*>(&head_) + head_bytes_, sizeof(head_) - head_bytes_};
  const std::uint64_t left = head_.length - body_bytes_;
  if (wanted_) return {target_.data() + body_bytes_, left};
  return {nowhere_.data(), std::min<std::uint64_t>(left, nowhere_.size())};
}

status connection::read_some(std::uint64_t& left) {
  std::size_t bytes = 0;
  {
    const std::lock_guard guard(in_lock_);
    auto part = next_part();
    part.iov_len = std::min<std::size_t>(part.iov_len, most_in_turn);
    const auto got = door_->receive(socket_.get(), {&part, 1});
    if (!got) return got.error().code() == errc::would_block ? got.error() : gone().with_context(got.error().message());
    if (*got == 0) return gone();
    bytes = *got;
  }
  left -= std::min<std::uint64_t>(left, bytes);
  return take(bytes);
}

// So many bytes more of the head or the body are there.
status connection::take(std::size_t bytes) {
  const auto user = user_.lock();  // null: what comes goes nowhere, until what is queued has left
  if (head_bytes_ < sizeof(head_)) {
    {
      const std::lock_guard guard(in_lock_);
      head_bytes_ += bytes;
      if (head_bytes_ < sizeof(head_)) return {};
      diverted_ = false;
    }
    auto target = user != nullptr ? user->begins(head_) : std::span<std::byte>();
    if (!target) return target.error();
    const std::lock_guard guard(in_lock_);
    target_ = *target;
    wanted_ = !target_.empty() && !diverted_;
    body_bytes_ = 0;
  } else {
    body_bytes_ += bytes;
  }
  if (body_bytes_ < head_.length) return {};
  const auto head = head_;
  {
    const std::lock_guard guard(in_lock_);
    head_bytes_ = 0;
    head_ = {};
    target_ = {};
  }
  return user != nullptr ? user->arrived(head) : status();
}

void connection::divert(std::uint64_t message) {
  const std::lock_guard guard(in_lock_);
  if (head_bytes_ < sizeof(head_) || head_.message != message) return;
  diverted_ = true;
  wanted_ = false;
}

// --- what goes out

bool connection::enqueue(outgoing_frame frame) {
  const std::lock_guard guard(out_lock_);
  if (closing_ || !ended_.ok()) return false;
  queue_.push_back(std::move(frame));
  return true;
}

void connection::flush() { flush_up_to(most_by_caller); }

void connection::withdraw(std::uint64_t message) {
  std::unique_lock guard(out_lock_);
  while (flushing_ && !queue_.empty() && queue_.front().head.message == message) {  // in a system call that does not block
    guard.unlock();
    std::this_thread::yield();
    guard.lock();
  }
  for (auto each = queue_.begin(); each != queue_.end();) {
    if (each->head.message != message || each->lent.empty()) {
      ++each;
    } else if (each == queue_.begin() && sent_of_first_ > 0) {
      const bool kept = or_without_memory(
          [&] {
            each->own.insert(each->own.end(), each->lent.begin(), each->lent.end());
            return true;
          },
          [] { return false; });
      each->lent = {};
      each->written = nullptr;  // and with it what it kept of what was lent
      ++each;
      if (kept) continue;
      ended_ = no_memory();  // a frame cannot stay half sent
      door_->finish(socket_.get(), true);
      return;
    } else {
      each = queue_.erase(each);
    }
  }
}

// With out_lock_.
void connection::watch_writing(bool on) noexcept {
  if (on == watched_ || token_ == 0) return;
  watched_ = on;
  (void)reactor_->change(socket_.get(), token_, on);
}

// One thread at a time sends, without the lock; the first frame stays where it is meanwhile.
void connection::flush_up_to(std::uint64_t most) noexcept {
  for (std::uint64_t sent_now = 0;;) {
    std::array<iovec, 3> parts;
    std::size_t count = 0;
    {
      const std::lock_guard guard(out_lock_);
      if (flushing_ || connecting_ || !ended_.ok()) return;
      if (queue_.empty()) {
        watch_writing(false);
        if (closing_) door_->finish(socket_.get(), false);
        return;
      }
      if (sent_now >= most) {
        watch_writing(true);
        return;
      }
      count = parts_of(queue_.front(), sent_of_first_, parts);
      flushing_ = true;
    }
    const auto sent = door_->send(socket_.get(), std::span(parts).first(count));
    std::function<void(const status&)> written;
    bool stop = false;
    {
      const std::lock_guard guard(out_lock_);
      flushing_ = false;
      stop = !ended_.ok();
      if (sent) {
        sent_now += *sent;
        sent_of_first_ += *sent;
        if (sent_of_first_ == length_of(queue_.front())) {
          written = std::move(queue_.front().written);
          telling_ += written ? 1 : 0;
          queue_.pop_front();
          sent_of_first_ = 0;
        }
      } else if (stop) {
        // It has ended meanwhile.
      } else if (sent.error().code() == errc::would_block) {
        watch_writing(true);
        stop = true;
      } else {
        // Reading tells of it, behind what has arrived before.
        door_->finish(socket_.get(), true);
        stop = true;
      }
    }
    if (written) {
      written({});
      const std::lock_guard guard(out_lock_);
      --telling_;
      stop = stop || !ended_.ok();
    }
    if (stop) {
      finish_end();
      return;
    }
  }
}

// --- the end

void connection::close() {
  {
    const std::lock_guard guard(in_lock_);
    diverted_ = true;
    wanted_ = false;
  }
  {
    const std::lock_guard guard(out_lock_);
    closing_ = true;
  }
  flush();
}

void connection::end(const status& why) noexcept {
  {
    const std::lock_guard guard(out_lock_);
    if (token_ != 0) reactor_->remove(socket_.get(), std::exchange(token_, 0));
    if (ended_.ok()) ended_ = why;
    door_->finish(socket_.get(), true);  // the other end hears of it, whoever keeps this
  }
  finish_end();
}

// Once nobody is sending, since their memory may go when they are told; and once who has sent all of a frame has been told so.
void connection::finish_end() noexcept {
  std::list<outgoing_frame> unsent;
  status why;
  {
    const std::lock_guard guard(out_lock_);
    if (ended_.ok() || flushing_ || telling_ > 0 || token_ != 0 || std::exchange(told_, true)) return;
    unsent.swap(queue_);
    why = ended_;
  }
  for (auto& frame : unsent) {
    if (frame.written) frame.written(why);
  }
  if (const auto user = user_.lock(); user != nullptr) user->lost(why);
}

}  // namespace penstock::channel
