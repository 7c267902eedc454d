#include "channel/connection.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::channel {

namespace {

// The number of bytes that a caller sends before it leaves the rest to the reactor, and that the reactor reads or sends before it serves
// other sockets.
constexpr std::uint64_t most_by_caller = std::uint64_t{256} << 10;
constexpr std::uint64_t most_in_turn = std::uint64_t{4} << 20;

std::uint64_t length_of(const outgoing_frame& frame) { return sizeof(frame.head) + frame.own.size() + frame.lent.size(); }

// Collects the parts of the frame after its first skip bytes. Returns their number.
std::size_t parts_of(const outgoing_frame& frame, std::uint64_t skip, std::array<iovec, 3>& to) {
  const std::array<std::span<const std::byte>, 3> all{std::as_bytes(std::span(&frame.head, 1)), frame.own, frame.lent};
  std::size_t count = 0;
  for (const auto& part : all) {
    const auto rest = part.subspan(std::min<std::uint64_t>(skip, part.size()));
    skip -= part.size() - rest.size();
    if (!rest.empty()) to[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};  // sendmsg only reads the memory of its iovec
  }
  return count;
}

status gone() { return {errc::closed, "the peer disconnected"}; }
status other_uses_tls() { return {errc::permission_denied, "the peer uses TLS, but this process does not"}; }
// Returns true if a frame head starts with a TLS handshake or alert record (RFC 8446, 5.1) instead of a frame kind.
bool is_tls(const frame_head& head, std::size_t bytes) noexcept {
  constexpr std::uint32_t alert = 0x0315;
  constexpr std::uint32_t handshake = 0x0316;
  const auto begins = head.kind & 0xffffU;
  return bytes >= 2 && (begins == alert || begins == handshake);
}
// Returns true if the error means more than that the peer disconnected. With TLS this includes a connection that was closed without a
// close_notify.
bool tells_why(const status& problem, bool secure) {
  const bool cut = secure && problem.code() == errc::io && problem.domain() == error_domain::penstock;
  return problem.code() == errc::would_block || problem.code() == errc::permission_denied || cut;
}
status flooded() { return {errc::io, "the peer passed more descriptors than it announced"}; }
status given_up() { return {errc::closed, "the connection was abandoned"}; }

}  // namespace

std::shared_ptr<connection> connection::make(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, sys::owned_descriptor over,
                                             bool connecting, std::unique_ptr<sys::tls_stream> secure) {
  return std::make_shared<connection>(std::move(door), std::move(with), std::move(over), connecting, std::move(secure));
}

connection::connection(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, sys::owned_descriptor over, bool connecting,
                       std::unique_ptr<sys::tls_stream> secure)
    : door_(std::move(door)), reactor_(std::move(with)), socket_(std::move(over)), secure_(std::move(secure)), connecting_(connecting) {}

connection::~connection() = default;

status connection::start(std::weak_ptr<frame_user> user) {
  user_ = std::move(user);
  const std::lock_guard guard(out_lock_);
  watched_ = connecting_;
  const used_socket::use here(socket_);
  auto token = reactor_->add(here.fd(), shared_from_this(), connecting_);
  if (!token) return token.error();
  token_ = *token;
  return {};
}

socket_handler::next connection::ready(bool readable, bool writable) noexcept {
  const auto self = shared_from_this();  // callbacks may release this object
  {
    const std::lock_guard guard(out_lock_);  // waits until start() has returned
    if (connecting_ && writable) {
      connecting_ = false;
      const used_socket::use here(socket_);
      ended_ = door_->connected(here.fd());
    }
  }
  if (has_ring_.load()) {
    if (readable) hear_calls();
    flush_up_to(most_in_turn);  // there may be room
  } else if (writable) {
    flush_up_to(most_in_turn);
  }
  if (readable) read_in_turn();
  if (readable && secure_ != nullptr) flush_up_to(most_in_turn);  // sending may have waited for what arrived
  if (has_more_) return next::turn;
  return readable || writable ? rest() : look_later();
}

// --- ring

void connection::use_ring(std::unique_ptr<ring_pair> ring, bool leaves) {
  const std::lock_guard guard(out_lock_);
  ring_ = std::move(ring);
  by_ring_ = leaves;
  has_ring_.store(true);
}

// The peer wakes a sleeping thread because there is something to read, or room to write.
void connection::hear_calls() noexcept {
  std::array<std::byte, 256> calls;
  const iovec part{calls.data(), calls.size()};
  for (;;) {
    if (!takes_more_passed()) return;
    const auto heard = or_no_memory([&] { return receive(part); });
    if (heard && *heard > 0) continue;
    if (heard || heard.error().code() != errc::would_block) gone_.store(true);
    return;
  }
}

// At the limit, the frames that have arrived are read first, because they take descriptors. If there are none, nothing refers to the
// descriptors.
bool connection::takes_more_passed() noexcept {
  const std::lock_guard guard(passed_lock_);
  if (passed_.size() < most_passed) return true;
  if (!ring_->in.something()) flooded_.store(true);
  return false;
}

// Reads from the socket.
result<std::size_t> connection::receive(const iovec& part) {
  std::vector<sys::owned_descriptor> come;
  const used_socket::use here(socket_);
  if (secure_ != nullptr) return secure_->receive(*door_, here.fd(), part);
  auto got = door_->receive(here.fd(), {&part, 1}, &come);
  if (come.empty()) return got;
  const std::lock_guard guard(passed_lock_);
  for (auto& each : come) {
    if (!keeps_passed_) break;
    if (passed_.size() == (has_ring_.load() ? most_passed : most_passed_first)) {
      flooded_.store(true);
      break;
    }
    passed_.push_back(std::move(each));
  }
  return got;
}

bool connection::pass(int descriptor) { return has_ring_.load() && call({&descriptor, 1}); }

sys::owned_descriptor connection::take_passed() noexcept {
  auto first = next_passed();
  if (first.get() >= 0 || !has_ring_.load()) return first;
  hear_calls();  // the reading thread handles the reason for the wakeups; the reactor or a polling thread continues
  return next_passed();
}

sys::owned_descriptor connection::next_passed() noexcept {
  const std::lock_guard guard(passed_lock_);
  if (passed_.empty()) return {};
  auto first = std::move(passed_.front());
  passed_.pop_front();
  return first;
}

// Returns false if the socket is full. In that case the thread already has enough wakeups pending.
bool connection::call(std::span<const int> passed) noexcept {
  std::byte one{};
  const iovec part{&one, 1};
  const used_socket::use here(socket_);
  return door_->send(here.fd(), {&part, 1}, passed).ok();
}

void connection::begin_polling() noexcept {
  pollers_.fetch_add(1);
  polls_.fetch_add(1);
  if (has_ring_.load()) ring_->in.watch();
}

// Only for threads that have started polling: a wakeup meant for the reactor may be read here (take_passed), so some thread must keep
// polling.
bool connection::poll() noexcept { return has_ring_.load() && ring_->in.something() && read_in_turn(); }

// A thread that polled often polls again at once. So arriving bytes do not wake the reactor; it checks for them itself shortly afterwards.
void connection::end_polling() noexcept {
  if (pollers_.fetch_sub(1) != 1 || !has_ring_.load() || looks_later_.exchange(true)) return;
  std::uint64_t token = 0;
  {
    const std::lock_guard guard(out_lock_);
    token = token_;
  }
  if (token != 0) reactor_->later(token);
}

socket_handler::next connection::look_later() noexcept {
  if (has_ring_.load() && ring_->in.something()) read_in_turn();
  if (const auto polls = polls_.load(); !over_.load() && (pollers_.load() > 0 || polls != polls_seen_)) {
    polls_seen_ = polls;
    return next::later;
  }
  looks_later_.store(false);
  return rest();
}

// Makes the ring wake the reactor, unless another thread is polling the ring.
socket_handler::next connection::rest() noexcept {
  if (!has_ring_.load() || over_.load() || pollers_.load() > 0 || looks_later_.load()) return next::event;
  return ring_->in.sleep() && !gone_.load() ? next::event : next::turn;
}

// --- input

result<std::size_t> connection::get(const iovec& part) {
  if (!has_ring_.load(std::memory_order_relaxed)) return receive(part);
  const bool last = gone_.load();
  auto got = ring_->in.read(part);
  if (got && ring_->in.must_call()) call();
  if (!got && got.error().code() == errc::would_block && last) return std::size_t{0};
  return got;
}

// Reads what has arrived, unless another thread is reading; that thread checks again before it stops. Returns true if anything was read.
bool connection::read_in_turn() noexcept {
  if (reading_.test_and_set()) return false;
  const bool something = read();
  reading_.clear();
  if (abandoned_.load()) end_abandoned();  // set by a thread that saw this one reading
  return something;
}

bool connection::read() noexcept {
  std::uint64_t left = most_in_turn;
  // With TLS, encrypted bytes count as well, because they may decrypt to very few.
  const auto fetched = [this] { return secure_ != nullptr ? secure_->fetched() : 0; };
  const auto most_fetched = fetched() + most_in_turn;
  while (left > 0 && fetched() < most_fetched && !over_.load() && !abandoned_.load()) {
    auto problem = flooded_.load() ? flooded() : or_no_memory([&] { return read_some(left); });
    if (problem.code() == errc::would_block) break;
    if (problem.ok()) continue;
    end(problem);
    break;
  }
  if (secure_ != nullptr) has_more_ = !over_.load() && (left == 0 || fetched() >= most_fetched) && secure_->has_unread();
  return left < most_in_turn;
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
    const auto got = get(part);
    const bool ends = got ? *got == 0 : !tells_why(got.error(), secure_ != nullptr);
    if (ends && hears_tls()) return other_uses_tls();
    if (!got) return ends ? gone().with_context(got.error().message()) : got.error();
    if (ends) return gone();
    bytes = *got;
  }
  left -= std::min<std::uint64_t>(left, bytes);
  return take(bytes);
}

// Call with in_lock_ held. True only before the first frame.
bool connection::hears_tls() const noexcept { return !heard_frame_ && secure_ == nullptr && is_tls(head_, head_bytes_); }

// Handles more bytes of the head or the body.
status connection::take(std::size_t bytes) {
  const auto user = user_.lock();  // null: incoming frames are discarded until the queued ones have been sent
  if (head_bytes_ < sizeof(head_)) {
    {
      const std::lock_guard guard(in_lock_);
      head_bytes_ += bytes;
      if (head_bytes_ < sizeof(head_)) return {};
      if (hears_tls()) return other_uses_tls();
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
    heard_frame_ = true;
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

// --- output

bool connection::enqueue(outgoing_frame frame) {
  const std::lock_guard guard(out_lock_);
  if (closing_ || !ended_.ok()) return false;
  queue_.push_back(std::move(frame));
  return true;
}

void connection::flush() { flush_up_to(most_by_caller); }

void connection::flush_elsewhere() {
  const std::lock_guard guard(out_lock_);
  if (!queue_.empty()) watch_writing(true);
}

void connection::withdraw(std::uint64_t message) {
  std::unique_lock guard(out_lock_);
  while (flushing_ && !queue_.empty() && queue_.front().head.message == message) {  // in a non-blocking system call
    guard.unlock();
    std::this_thread::yield();
    guard.lock();
  }
  for (auto each = queue_.begin(); each != queue_.end();) {
    if (each->head.message != message || each->lent.empty()) {
      ++each;
    } else if (each == queue_.begin() && (sent_of_first_ > 0 || (secure_ != nullptr && secure_->has_taken()))) {
      const bool kept = or_without_memory(
          [&] {
            each->own.insert(each->own.end(), each->lent.begin(), each->lent.end());
            return true;
          },
          [] { return false; });
      each->lent = {};
      each->written = nullptr;  // also releases what it kept alive for the lent memory
      ++each;
      if (kept) continue;
      ended_ = no_memory();  // a frame cannot be left half sent
      const used_socket::use here(socket_);
      door_->finish(here.fd(), true);
      return;
    } else {
      each = queue_.erase(each);
    }
  }
}

// Call with out_lock_ held.
void connection::watch_writing(bool on) noexcept {
  if (on == watched_ || token_ == 0) return;
  watched_ = on;
  const used_socket::use here(socket_);
  (void)reactor_->change(here.fd(), token_, on);
}

result<std::size_t> connection::put(std::span<const iovec> parts) {
  auto sent = ring_->out.write(parts);
  if (sent && ring_->out.must_call()) call();
  return sent;
}

result<std::size_t> connection::send(int fd, std::span<const iovec> parts, std::span<const int> passed) {
  if (secure_ == nullptr) return door_->send(fd, parts, passed);
  return or_no_memory([&] { return secure_->send(*door_, fd, parts); });
}

// Call with out_lock_ held after the socket accepted nothing. Returns false if it would accept bytes now: with TLS, the reading thread may
// have received what this thread was waiting for, and leaves the sending to it.
bool connection::wait_to_send(bool by_ring) noexcept {
  using awaited = sys::tls_stream::awaited;
  const auto lacks = secure_ == nullptr ? awaited::room : secure_->waits_for();
  if (lacks == awaited::nothing) return false;
  watch_writing(!by_ring && lacks == awaited::room);  // with a ring, the peer wakes this process
  return true;
}

// One thread at a time sends, without the lock. The first frame keeps its address during that time.
void connection::flush_up_to(std::uint64_t most) noexcept {
  const used_socket::use here(socket_);
  if (secure_ != nullptr) secure_->flush(*door_, here.fd());
  for (std::uint64_t sent_now = 0;;) {
    std::array<iovec, 3> parts;
    std::size_t count = 0;
    int with = -1;
    bool by_ring = false;
    {
      const std::lock_guard guard(out_lock_);
      if (flushing_ || connecting_ || !ended_.ok()) return;
      if (queue_.empty()) {
        if (closing_ && secure_ != nullptr) secure_->end(*door_, here.fd());
        const bool rest = secure_ != nullptr && secure_->has_unsent();
        watch_writing(rest);
        if (closing_ && !rest) door_->finish(here.fd(), false);
        return;
      }
      if (sent_now >= most) {
        watch_writing(true);
        return;
      }
      count = parts_of(queue_.front(), sent_of_first_, parts);
      if (sent_of_first_ == 0) with = queue_.front().passed.get();
      by_ring = by_ring_;
      flushing_ = true;
    }
    const auto to_send = std::span(parts).first(count);
    const auto sent = by_ring ? put(to_send) : send(here.fd(), to_send, std::span(&with, with < 0 ? 0 : 1));
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
          by_ring_ = by_ring_ || queue_.front().last_of_socket;
          queue_.pop_front();
          sent_of_first_ = 0;
        }
      } else if (stop) {
        // The connection ended while the lock was released.
      } else if (sent.error().code() == errc::would_block) {
        stop = wait_to_send(by_ring);
      } else {
        // The reading side reports the error, after everything that arrived before it.
        door_->finish(here.fd(), true);
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

// --- end of the connection

void connection::close(std::chrono::milliseconds within) noexcept {
  {
    const std::lock_guard guard(in_lock_);
    diverted_ = true;
    wanted_ = false;
  }
  let_go_of_passed();
  std::uint64_t token = 0;
  {
    const std::lock_guard guard(out_lock_);
    if (!std::exchange(closes_, true)) token = token_;
  }
  const bool waits = token == 0 || reactor_->call_at(token, reactor::clock::now() + within);
  end_sending();
  if (!waits) abandon();  // otherwise nothing would close it later
}

// Also closes descriptors that arrive later.
void connection::let_go_of_passed() noexcept {
  std::deque<sys::owned_descriptor> gone;  // closed after the lock is released
  const std::lock_guard guard(passed_lock_);
  keeps_passed_ = false;
  gone.swap(passed_);
}

void connection::abandon() noexcept {
  const auto self = weak_from_this().lock();  // callbacks may release this object
  abandoned_.store(true);
  end_abandoned();
}

void connection::end_abandoned() noexcept {
  if (reading_.test_and_set()) return;  // the reading thread checks abandoned_ when it is done
  if (!over_.load()) end(given_up());
  reading_.clear();
}

bool connection::has_something() noexcept {
  const used_socket::use here(socket_);
  return door_->has_something(here.fd());
}

result<sys::credentials> connection::credentials_of_other() {
  const used_socket::use here(socket_);
  return door_->credentials_of(here.fd());
}

result<sys::socket_address> connection::address_of(bool of_other) {
  const used_socket::use here(socket_);
  return door_->address_of(here.fd(), of_other);
}

void connection::end_sending() {
  {
    const std::lock_guard guard(out_lock_);
    closing_ = true;
  }
  flush();
}

void connection::end(const status& why) noexcept {
  over_.store(true);
  let_go_of_passed();
  {
    const std::lock_guard guard(out_lock_);
    const used_socket::use here(socket_);
    if (token_ != 0) reactor_->remove(here.fd(), std::exchange(token_, 0));
    if (ended_.ok()) ended_ = why;
    if (secure_ != nullptr) secure_->end(*door_, here.fd());
    door_->finish(here.fd(), true);  // wakes threads blocked in a call on the socket
    socket_.close();
  }
  finish_end();
}

// Waits until no thread is sending, because an owner may free its memory once notified, and until senders of completed frames have been
// notified.
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
