#include "pipe/session.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"

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

// --- the beginning

result<std::shared_ptr<session>> session::make(const pipe_shared& with, sys::owned_descriptor over, const std::string& url, bool local,
                                               bool connecting, proof_listener when_proven) {
  auto made = std::make_shared<session>(with, url, local);
  if (!local && !with.secret.empty()) {
    auto asked = channel::proof::make(with.secret, connecting);
    if (!asked) return asked.error();
    made->proof_ = *std::move(asked);
    made->when_proven_ = std::move(when_proven);
  }
  if (auto problem = made->start(made, std::move(over), connecting); !problem.ok()) return problem;
  return made;
}

status session::start(const std::shared_ptr<session>& self, sys::owned_descriptor over, bool connecting) {
  connects_ = connecting;
  connection_ = channel::connection::make(with_.door, with_.reactor, std::move(over), connecting);
  if (!local_ && with_.connections > 1) {
    stripes_ = std::make_shared<pipe_stripes>(with_.door, with_.reactor, with_.more_reactors, connection_, connecting, with_.connections,
                                              with_.close_within, self);
  }
  if (connecting && proof_) {
    say(frame_kind::challenge, 0, proof_->challenge());
  } else if (connecting) {
    auto offered = local_ ? with_.door->make_region(channel::ring_pair::bytes) : sys::offered_region();
    if (!offered) offered = sys::offered_region();  // all goes over the socket
    say_hello(std::move(offered->by), offered->memory.size());
    offered_ = std::move(offered->memory);
  }
  if (auto problem = connection_->start(self); !problem.ok()) return problem;
  connection_->flush();
  with_.staging->add(self);
  if (!with_.runtime->stats().begun()) with_.runtime->join_board();
  return {};
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

// Who has connected offers memory for a ring, and the other end takes it where it can map it.
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
    : with_(with), local_(local), peer_name_(url.empty() ? "the other end" : url) {
  const auto maps = [](const channel::channel* each) { return each->how() == channel::carriage::map; };
  shares_.store(local && std::any_of(with.channels.begin(), with.channels.end(), maps));
}

session::~session() {
  if (push_watch_ != nullptr) push_watch_->release();
  if (with_.runtime->forked()) return;
  with_.staging->remove(*this);
  unpin_permits();
  if (connection_ != nullptr) connection_->close(closes_within());
  if (stripes_ != nullptr) stripes_->close();
}

void session::enqueue(channel::outgoing_frame frame) { (void)connection_->enqueue(std::move(frame)); }  // else all are told of the end

void session::say(frame_kind kind, std::uint64_t message, std::vector<std::byte> body, std::uint64_t part, std::uint32_t code) {
  const auto size = body.size();
  enqueue({{static_cast<std::uint32_t>(kind), code, message, part, size}, std::move(body), {}, {}});
}

void session::say(frame_kind kind, std::uint64_t message, const status& why, std::uint64_t part) {
  say(kind, message, channel::encode_text(why.message()), part, channel::code_of(why));
}

status session::pipe_closed() { return {errc::closed, "the pipe was closed"}; }

status session::over() const { return closed_ ? pipe_closed() : lost_; }

// --- what the other end says, on the reactor's thread

result<std::span<std::byte>> session::begins(const channel::frame_head& head) {
  const std::lock_guard guard(lock_);
  if (closed_ || cut_off_) return std::span<std::byte>();  // what comes goes nowhere, until what is queued has left
  const auto kind = static_cast<frame_kind>(head.kind);
  const bool opens = kind == frame_kind::hello || kind == frame_kind::challenge || kind == frame_kind::proof || kind == frame_kind::refused;
  if (greeted_ == opens) return out_of_turn("its greeting");
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
    case frame_kind::line_over:
    case frame_kind::sent_by_line:
      most = limits::text_bytes;
      break;
    case frame_kind::line:
    case frame_kind::line_ready:
      most = limits::line_bytes;
      break;
    case frame_kind::wanted_by_line:
      most = sizeof(std::uint64_t);
      break;
    case frame_kind::announcement:
      if (!ready_) return out_of_turn("a message");
      most = limits::announcement_bytes;
      break;
    case frame_kind::tensor: {
      if (head.length > limits::piece_bytes || (head.length == 0 && head.code == 0)) return out_of_turn("a piece of a tensor");
      if (head.length == 0) break;  // it lies in the inbox
      const auto found = receiving_now_.find(head.message);
      if (found == receiving_now_.end()) return std::span<std::byte>();  // it was stopped
      auto& op = *found->second;
      if (op.asked.empty() && op.stopping.load()) return std::span<std::byte>();
      const auto asked = op.asked_for(head.part, head.code);
      if (asked == op.asked.end() || asked->bytes != head.length) return out_of_turn("a piece of a tensor");
      return op.room_of(*asked);
    }
    case frame_kind::piece:
      return room_for_piece(head);
    case frame_kind::stripes:
    case frame_kind::farewell:
      if (stripes_ == nullptr) return out_of_turn("word of further connections");
      most = limits::text_bytes;
      break;
    case frame_kind::posted:
      if (!ready_) return out_of_turn("where its tensors go");
      most = limits::posted_bytes;
      break;
    case frame_kind::pushed:
      most = limits::text_bytes;
      break;
    case frame_kind::wanted:
    case frame_kind::wanted_piece:
    case frame_kind::inbox:
    case frame_kind::unused:
    case frame_kind::credit:
      break;
    default:
      return status(errc::io, fmt::format("the other end sent a frame of kind {}, which there is none of", head.kind));
  }
  if (head.length > most)
    return status(errc::io, fmt::format("the other end sent a frame of {} bytes, and {} is the most", head.length, most));
  body_.resize(head.length);
  return std::span(body_);
}

status session::arrived(const channel::frame_head& head) {
  if (static_cast<frame_kind>(head.kind) == frame_kind::inbox) {
    auto wrong = inbox_offered(head.code != 0);
    connection_->flush();  // a call that was heard may have told of room
    return wrong;
  }
  if (static_cast<frame_kind>(head.kind) == frame_kind::stripes) return told_of_stripes(head);
  if (static_cast<frame_kind>(head.kind) == frame_kind::line) return line_offered(head);
  status wrong;
  with_lock([&](endings& ended) {
    if (closed_ || cut_off_) return;
    switch (static_cast<frame_kind>(head.kind)) {
      case frame_kind::challenge:
        wrong = challenged(body_);
        break;
      case frame_kind::proof:
        wrong = proven(body_);
        break;
      case frame_kind::refused:
        wrong = {errc::permission_denied, fmt::format("{} lets nobody in: {}", peer_name_, channel::decode_text(body_))};
        break;
      case frame_kind::hello:
        wrong = greeted(body_);
        break;
      case frame_kind::reach:
        wrong = reached(body_);
        announce_what_may();
        break;
      case frame_kind::announcement:
        wrong = announced(head, ended);
        break;
      case frame_kind::wanted:
      case frame_kind::wanted_piece:
        wrong = wanted(head, ended);
        break;
      case frame_kind::tensor:
        wrong = tensor_arrived(head, ended);
        break;
      case frame_kind::piece:
        striped_arrived(head, ended);
        break;
      case frame_kind::inbox:
      case frame_kind::line:
      case frame_kind::stripes:
      case frame_kind::joins:
        break;
      case frame_kind::farewell:
        if (stripe_lost_.ok()) stripe_lost_ = channel::status_of(head.code, body_);
        break;
      case frame_kind::line_ready:
        wrong = line_answered(head, ended);
        break;
      case frame_kind::line_over:
        wrong = line_over(head, ended);
        break;
      case frame_kind::wanted_by_line:
        wrong = wanted_by_line(head, ended);
        break;
      case frame_kind::sent_by_line:
        wrong = answered_by_line(head, ended);
        break;
      case frame_kind::unused:
        wrong = answered(head.code, ended);
        break;
      case frame_kind::taken:
        wrong = taken(head, ended);
        break;
      case frame_kind::withdrawn:
        withdrawn(head, ended);
        break;
      case frame_kind::credit:
        if (head.code > messages_ahead_ || head.part > bytes_ahead_) {
          wrong = out_of_turn("credit");
          break;
        }
        messages_ahead_ -= head.code;
        bytes_ahead_ -= head.part;
        announce_what_may();
        break;
      case frame_kind::posted:
        wrong = posted(head);
        break;
      case frame_kind::pushed:
        wrong = pushed(head, ended);
        break;
    }
  });
  if (is_proven_ && when_proven_) std::exchange(when_proven_, {})(shared_from_this(), true);
  return wrong;
}

// --- the end

void session::conclude(pipe_operation& op, io_result outcome, endings& ended) {
  op.ended = true;
  ended.told.emplace_back(&op, std::move(outcome));
}

// What only reads the sender's memory goes on when merely the connection was lost: the sender may be alive, and says so in its memory.
void session::end_all(const status& why, endings& ended) {
  if (lost_.ok()) lost_ = why;
  while (!announced_.empty()) end(*announced_.begin()->second, {0, why}, ended);
  while (!queued_.empty()) end(*queued_.front(), {0, why}, ended);
  for (auto* op : waiting_) {
    if (take_back(*op)) {
      conclude(*op, {0, why}, ended);
    } else {
      being_pushed_.push_back(op);
    }
  }
  waiting_.clear();
  end_pushes(why, ended);
  for (const auto& [number, op] : receiving_now_) {
    if (closed_ || op->pieces_left > 0) abandon(*op, why, ended);
  }
  known_.notify_all();
}

void session::lost(const status& why) noexcept {
  if (when_proven_) std::exchange(when_proven_, {})(shared_from_this(), false);
  with_lock([&](endings& ended) {
    const auto first = stripe_lost_.ok() ? std::string() : fmt::format(" (first lost: {})", stripe_lost_.message());
    const auto who = why.message().starts_with(peer_name_) ? std::string() : peer_name_ + ": ";
    end_all(status(why.code(), fmt::format("{}{}{}", who, why.message(), first)), ended);
  });
  if (stripes_ != nullptr) stripes_->close();
  let_go_of_memory();
}

// Nothing that an end which has never spoken would wait for is left to be sent but why it is refused.
std::chrono::milliseconds session::closes_within() noexcept {
  constexpr std::chrono::milliseconds most_without_greeting{1000};
  const std::lock_guard guard(lock_);
  return greeted_ ? with_.close_within : std::min(with_.close_within, most_without_greeting);
}

// A forked child shares the socket with its parent, and has nothing to say.
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
  if (stripes_ != nullptr) stripes_->close();
  let_go_of_memory();
}

// What pieces that are being copied still use goes with them.
void session::let_go_of_memory() noexcept {
  imports_.clear();
  end_lines();
  std::shared_ptr<pipe_inbox> inbox;
  std::shared_ptr<pinned_region> outbox;
  const std::lock_guard guard(lock_);
  inbox.swap(inbox_);
  outbox.swap(outbox_);
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

void session::count(std::string_view channel, const channel_stats& more) {
  auto& all = stats_[std::string(channel)];
  all.sent_tensors += more.sent_tensors;
  all.sent_bytes += more.sent_bytes;
  all.received_tensors += more.received_tensors;
  all.received_bytes += more.received_bytes;
  all.pushed_tensors += more.pushed_tensors;
  const auto* const known = channel::find_channel(channel);
  if (known != nullptr) with_.runtime->stats().count_channel(known->name(), more);
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
