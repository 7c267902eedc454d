#include "pipe/session.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/gate.hpp"

namespace penstock::pipes {

using channel::frame_kind;
using channel::limits;
using channel::out_of_turn;

// --- incoming messages

bool arrived_message::has_tensors_elsewhere() const {
  return std::any_of(facts.tensors.begin(), facts.tensors.end(), [](const channel::tensor_facts& each) { return !each.in_line; });
}

result<staging::place> place_of_part(core::runtime& with, const void* memory, std::uint64_t length, std::string_view kind,
                                     std::size_t index) {
  if (length == 0) return staging::place{};
  if (memory == nullptr) return status(errc::bad_memory, fmt::format("{} {}: null pointer", kind, index));
  auto found = with.memory().place_of(memory, length);
  if (!found) return found.error().with_context(fmt::format("{} {}", kind, index));
  return found;
}

std::span<const std::byte> arrived_message::in_line_bytes() const {
  if (facts.tensors.empty() || !facts.tensors.front().in_line) return {};
  auto rest = contents();
  for (const auto length : facts.payload_lengths) rest = rest.subspan(length);
  return rest;
}

// --- handshake

result<std::shared_ptr<session>> session::make(const pipe_shared& with, sys::owned_descriptor over, const std::string& url, bool local,
                                               bool connecting, std::unique_ptr<sys::tls_stream> secure, proof_listener when_proven) {
  auto made = std::make_shared<session>(with, url, local);
  if (!local && !with.secret.empty()) {
    auto asked = channel::proof::make(with.secret, connecting);
    if (!asked) return asked.error();
    made->secret_.proof = *std::move(asked);
  }
  made->secret_.when_proven = std::move(when_proven);
  if (auto problem = made->start(made, std::move(over), connecting, std::move(secure)); !problem.ok()) return problem;
  return made;
}

status session::start(const std::shared_ptr<session>& self, sys::owned_descriptor over, bool connecting,
                      std::unique_ptr<sys::tls_stream> secure) {
  connects_ = connecting;
  connection_ = channel::connection::make(with_.door, with_.reactor, std::move(over), connecting, std::move(secure));
  if (connecting || !secret_.when_proven) make_carriers();  // otherwise after the peer's proof
  if (connecting && secret_.proof) {
    say(frame_kind::challenge, 0, secret_.proof->challenge());
  } else if (connecting) {
    auto offered = local_ ? with_.door->make_region(channel::ring_pair::bytes) : sys::offered_region();
    if (!offered) offered = sys::offered_region();  // everything is then sent over the socket
    say_hello(std::move(offered->by), offered->memory.size());
    offered_ = std::move(offered->memory);
  }
  if (auto problem = connection_->start(self); !problem.ok()) return problem;
  connection_->flush();
  with_.staging->add(self);
  if (connecting) core::gate::add(self);  // an accepted pipe is added once the listener hands it out
  if (!with_.runtime->stats().begun()) with_.runtime->join_board();
  return {};
}

void session::make_carriers() {
  for (const auto* each : with_.channels) {
    carriers_.push_back(each->make(with_, *this));
    auto* const made = carriers_.back().get();
    if (made != nullptr) made->set_number(static_cast<std::uint8_t>(carriers_.size() - 1));
    if (made != nullptr && made->as_pusher() != nullptr) pusher_ = made->as_pusher();
  }
}

void session::say_hello(sys::owned_descriptor passed, std::uint64_t ring_bytes) {
  auto who = channel::own_identity();
  who.connections = local_ ? 0 : with_.connections;
  auto body = channel::encode(channel::hello{channel::wire_version, who, ring_bytes});
  channel::outgoing_frame frame{{static_cast<std::uint32_t>(frame_kind::hello), 0, 0, 0, body.size()},
                                std::move(body),
                                {},
                                {},
                                std::move(passed),
                                !connects_ && ring_bytes > 0};
  enqueue(std::move(frame));
}

// The connecting end offers memory for a ring. The peer uses the ring if it can map the memory.
void session::agree_on_ring(std::uint64_t bytes) {
  using channel::ring_pair;
  const auto passed = connection_->take_passed();
  bool alone = passed.get() >= 0;
  while (connection_->take_passed().get() >= 0) alone = false;
  const bool possible = local_ && bytes == ring_pair::bytes;
  if (connects_) {
    if (possible && offered_.size() == bytes) connection_->use_ring(std::make_unique<ring_pair>(std::move(offered_), true), true);
    offered_ = {};
    return;
  }
  auto memory = possible && alone ? with_.door->map_region(passed.get(), bytes) : sys::shared_region();
  const auto taken = memory ? memory->size() : 0;
  if (taken > 0) connection_->use_ring(std::make_unique<ring_pair>(*std::move(memory), false), false);
  say_hello({}, taken);
}

session::session(const pipe_shared& with, const std::string& url, bool local)
    : with_(with), local_(local), url_(url), peer_name_(url.empty() ? "the peer" : url) {}

session::~session() {
  if (with_.runtime->forked()) return;
  with_.staging->remove(*this);
  {
    const std::lock_guard guard(lock_);
    closed_ = true;  // carriers report this to the users of their resources
  }
  if (connection_ != nullptr) connection_->close(closes_within());
  close_carriers();
  carriers_.clear();
}

// Once the lock is released, the operation may complete on another thread, and its caller may then drop the pipe.
void session::run_step(void (*step)(void*, endings&), void* of) noexcept {
  const auto self = weak_from_this().lock();
  endings ended;
  {
    const std::lock_guard guard(lock_);
    or_without_memory(
        [&] {
          step(of, ended);
          return true;
        },
        [&] {
          end_all(no_memory(), ended);
          return false;
        });
  }
  if (ended.copies) (void)with_.runtime->feeders().pump();  // before messages that refer to the copies
  connection_->flush();
  if (ended.copies) with_.runtime->feeders().attend();
  for (auto* each : ended.go_on) each->go_on();
  for (auto& [op, outcome] : ended.told) op->tell_end(std::move(outcome));
  for (auto& [message, count] : ended.of_parts) message->parts_ended(count);
}

void session::enqueue(channel::outgoing_frame frame) {
  (void)connection_->enqueue(std::move(frame));
}  // on failure, lost() fails all operations

void session::say(frame_kind kind, std::uint64_t message, std::vector<std::byte> body, std::uint64_t part, std::uint32_t code) {
  const auto size = body.size();
  enqueue({{static_cast<std::uint32_t>(kind), code, message, part, size}, std::move(body), {}, {}});
}

void session::say(frame_kind kind, std::uint64_t message, const status& why) {
  say(kind, message, channel::encode_text(why.message()), 0, channel::code_of(why));
}

status session::pipe_closed() { return {errc::closed, "the pipe was closed"}; }

channel::carrier* session::carrier_of(const channel::frame_head& head) const noexcept {
  const auto number = channel::channel_of_frame(head.kind);
  return number < carriers_of_other_.size() ? carriers_of_other_[number] : nullptr;
}

// --- frames from the peer, on the reactor's thread

result<std::span<std::byte>> session::begins(const channel::frame_head& head) {
  const std::lock_guard guard(lock_);
  if (!hears()) return std::span<std::byte>();  // discard arriving bytes until the queued frames have been sent
  const auto kind = channel::kind_of_frame(head.kind);
  const bool opens = kind == frame_kind::hello || kind == frame_kind::challenge || kind == frame_kind::proof || kind == frame_kind::refused;
  if ((known_as_ != acquaintance::none) == opens) return out_of_turn("its greeting");
  std::uint64_t most = 0;
  switch (kind) {
    case frame_kind::challenge:
    case frame_kind::proof:
      most = channel::proof::bytes;
      break;
    case frame_kind::hello:
    case frame_kind::refused:
      most = limits::greeting_bytes;
      break;
    case frame_kind::reach:
    case frame_kind::taken:
    case frame_kind::withdrawn:
      most = limits::text_bytes;
      break;
    case frame_kind::announcement:
      if (!is_ready()) return out_of_turn("a message");
      most = limits::announcement_bytes;
      break;
    case frame_kind::of_channel: {
      auto* const by = carrier_of(head);
      if (by == nullptr) return out_of_turn("a frame for a channel that is not in use");
      const auto room = by->begins(head);
      if (!room) return room.error();
      body_.clear();
      if (room->most == 0) return room->at;
      most = room->most;
      break;
    }
    case frame_kind::credit:
      break;
    default:
      return status(errc::io, fmt::format("the peer sent a frame of unknown kind {}", head.kind));
  }
  if (head.length > most) return status(errc::io, fmt::format("the peer sent a frame of {} bytes, but the limit is {}", head.length, most));
  body_.resize(head.length);
  return std::span(body_);
}

status session::arrived(const channel::frame_head& head) {
  const auto kind = channel::kind_of_frame(head.kind);
  if (kind == frame_kind::of_channel) {
    auto* const by = carrier_of(head);
    return by == nullptr ? status() : by->arrived(head, body_);
  }
  status wrong;
  with_lock([&](endings& ended) {
    if (!hears()) return;
    switch (kind) {
      case frame_kind::challenge:
        wrong = challenged(body_);
        break;
      case frame_kind::proof:
        wrong = proven(body_);
        break;
      case frame_kind::refused:
        wrong = {errc::permission_denied, fmt::format("{} refused the connection: {}", peer_name_, channel::decode_text(body_))};
        break;
      case frame_kind::hello:
        wrong = greeted(body_);
        break;
      case frame_kind::reach:
        wrong = reached(body_);
        announce_what_may(ended);
        break;
      case frame_kind::announcement:
        wrong = announced(head, ended);
        break;
      case frame_kind::taken:
        wrong = taken(head, ended);
        break;
      case frame_kind::withdrawn:
        withdrawn(head, ended);
        break;
      case frame_kind::credit:
        if (head.code > ahead_.messages || head.part > ahead_.bytes) {
          wrong = out_of_turn("credit");
          break;
        }
        ahead_.messages -= head.code;
        ahead_.bytes -= head.part;
        announce_what_may(ended);
        break;
      case frame_kind::of_channel:
        break;
    }
  });
  if (secret_.is_proven && secret_.when_proven) std::exchange(secret_.when_proven, {})(shared_from_this(), true);
  return wrong;
}

// --- closing

void session::conclude(pipe_operation& op, io_result outcome, endings& ended) {
  ended.told.emplace_back(&op, std::move(outcome));
  op.end();
}

// Returns true for a peer that uses a different protocol version, or a secret or TLS that is not set here: the user gets the pipe, and its
// first operation returns the reason.
bool session::is_for_the_user(const status& why) const noexcept {
  const bool asks = secret_.proof || (!local_ && with_.tls != nullptr);
  return !asks && (why.code() == errc::unsupported || why.code() == errc::permission_denied);
}

// Operations that only read the sender's memory continue if only the connection is lost: the sender may still be alive, which its guard
// word shows.
void session::end_all(const status& why, endings& ended) {
  if (lost_.ok()) lost_ = why;
  while (!announced_.empty()) end(*announced_.begin()->second, {0, why}, ended);
  while (!queued_.empty()) end(*queued_.front(), {0, why}, ended);
  for (auto* op : waiting_) {
    if (take_back(*op)) {
      conclude(*op, {0, why}, ended);
    } else {
      op->move_to(next_operation::stage::written);
      op->posted->await();
    }
  }
  waiting_.clear();
  if (pusher_ != nullptr) pusher_->lost(why, ended);
  for (const auto& [number, op] : receiving_now_) {
    if (closed_ || op->needs_other_end()) abandon(*op, why, ended);
  }
  known_.notify_all();
}

void session::lost(const status& why) noexcept {
  if (secret_.when_proven) std::exchange(secret_.when_proven, {})(shared_from_this(), is_for_the_user(why));
  with_lock([&](endings& ended) {
    std::string first;
    for (const auto& each : carriers_) {
      if (each != nullptr && !each->lost_first().ok()) first = fmt::format(" (first failure: {})", each->lost_first().message());
    }
    const auto who = why.message().starts_with(peer_name_) ? std::string() : peer_name_ + ": ";
    end_all(status(why.code(), fmt::format("{}{}{}", who, why.message(), first)), ended);
  });
  close_carriers();
}

void session::cut_off(const status& why, endings& ended) {
  cut_off_ = true;
  end_all(status(why.code(), fmt::format("{}: {}", peer_name_, why.message())), ended);
}

// If the peer has never sent anything, only the reason for a refusal can be left to send, so the wait is short.
std::chrono::milliseconds session::closes_within() noexcept {
  constexpr std::chrono::milliseconds most_without_greeting{1000};
  const std::lock_guard guard(lock_);
  return known_as_ != acquaintance::none ? with_.close_within : std::min(with_.close_within, most_without_greeting);
}

std::string session::obstacle() const {
  if (with_.runtime->forked()) return {};
  const std::lock_guard guard(lock_);
  if (closed_) return {};
  return url_.empty() ? fmt::format("the pipe from {}", peer_name_) : fmt::format("the pipe to {}", url_);
}

// A forked child shares the socket with its parent and must not send anything.
void session::close() noexcept {
  if (with_.runtime->forked()) return;
  with_lock([&](endings& ended) {
    if (std::exchange(closed_, true)) return;
    end_all(pipe_closed(), ended);
    for (auto& message : come_) {
      if (message->has_tensors_elsewhere()) say(frame_kind::taken, message->number, pipe_closed());
    }
    come_.clear();
  });
  connection_->close(closes_within());
  close_carriers();
}

void session::close_carriers() noexcept {
  for (const auto& each : carriers_) {
    if (each != nullptr) each->close();
  }
}

bool session::poll() noexcept {
  const bool found = connection_->poll();
  return (pusher_ != nullptr && pusher_->poll()) || found;
}

// --- called by carriers

channel::incoming* session::find_incoming(std::uint64_t number) noexcept {
  const auto found = receiving_now_.find(number);
  return found == receiving_now_.end() ? nullptr : found->second;
}

channel::outgoing* session::find_outgoing(std::uint64_t number) noexcept {
  const auto found = announced_.find(number);
  const bool waits = found != announced_.end() && !found->second->in_line && found->second->at() == send_operation::stage::announced;
  return waits ? found->second : nullptr;
}

std::vector<channel::incoming*> session::all_begun() {
  std::vector<channel::incoming*> begun;
  for (const auto& [number, op] : receiving_now_) {
    if (op->at() == receive_operation::stage::begun) begun.push_back(op);
  }
  return begun;
}

const staging::link* session::sending_device(bool emulated) noexcept {
  const staging::link* via = nullptr;
  for (const auto& [number, op] : announced_) {
    for (const auto& each : op->places) {
      if (each.on_device() && each.emulated() == emulated) via = each.via;
    }
  }
  return via;
}

void session::add_under_way(std::vector<request_info>& to) {
  const std::lock_guard guard(lock_);
  const auto add = [&](const pipe_operation& op, bool is_send, std::uint64_t bytes, std::string device) {
    to.push_back({peer_name_, -1, bytes, is_send, std::move(device), op.since_ns, true});
  };
  const auto add_send = [&](const send_operation& op) {
    add(op, true, op.tensor_bytes + (op.in_line ? 0 : op.announcement_bytes),
        op.places.empty() ? "host" : core::name_of(op.places.front()));
  };
  for (const auto* op : queued_) add_send(*op);
  for (const auto& [number, op] : announced_) add_send(*op);
  for (const auto* op : waiting_) {
    if (op->posted == nullptr) continue;
    std::uint64_t bytes = 0;
    for (const auto& each : op->posted->targets) bytes += each.length;
    const auto& targets = op->posted->targets;
    add(*op, false, bytes, targets.empty() ? "" : targets.front().device);
  }
  for (const auto& [number, op] : receiving_now_) {
    std::uint64_t bytes = 0;
    for (const auto& each : op->targets) bytes += each.length;
    add(*op, false, bytes, op->places.empty() ? "" : core::name_of(op->places.front()));
  }
}

void session::count(const channel::channel& by, const channel_stats& more) {
  auto& all = stats_[by.name()];
  all.sent_tensors += more.sent_tensors;
  all.sent_bytes += more.sent_bytes;
  all.received_tensors += more.received_tensors;
  all.received_bytes += more.received_bytes;
  all.pushed_tensors += more.pushed_tensors;
  with_.runtime->stats().count_channel(by.name(), more);
}

std::vector<channel_stats> session::stats() {
  const std::lock_guard guard(lock_);
  std::vector<channel_stats> told;
  for (const auto& [name, counts] : stats_) {
    told.push_back(counts);
    told.back().name = name;
  }
  return told;
}

}  // namespace penstock::pipes
