// Pipes: the handshake, and the choice of a channel for each tensor.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "pipe/session.hpp"

namespace penstock::pipes {

namespace {

using channel::frame_kind;

constexpr std::size_t most_routes = 256;
constexpr std::string_view not_used_there = "the peer does not use it";
constexpr std::string_view not_used_here = "this pipe does not use it";

// Returns null if the list lacks the name.
const channel::reached_channel* find(const std::vector<channel::reached_channel>& list, std::string_view name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const auto& each) { return each.name == name; });
  return found == list.end() ? nullptr : &*found;
}

// Joins the names and refusals of channels.
template <class Channels>
std::string reasons_of(const Channels& refused) {
  std::string reasons;
  for (const auto& each : refused) reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", each.name, each.refusal);
  return reasons;
}

}  // namespace

// Sends to_other to the peer as the reason, if the peer is still reading, and returns an error with the message here.
status session::refuse(std::string_view to_other, std::string here) {
  say(frame_kind::refused, 0, channel::encode_text(to_other));
  return {errc::permission_denied, std::move(here)};
}

status session::challenged(std::span<const std::byte> body) {
  if (!secret_.proof) return refuse("a secret was given, but none is required", "the peer has a secret, but none was given here");
  if (auto wrong = secret_.proof->challenged(body); !wrong.ok()) return wrong;
  if (connects_) return {};
  secret_.has_begun.store(true);
  auto answer = secret_.proof->answer();
  if (!answer) return answer.error();
  say(frame_kind::challenge, 0, secret_.proof->challenge());
  say(frame_kind::proof, 0, *std::move(answer));
  return {};
}

// The accepting end sends its proof first, so that a connecting end reveals nothing to an impostor.
status session::proven(std::span<const std::byte> body) {
  if (!secret_.proof || secret_.is_proven) return channel::out_of_turn("a proof");
  if (auto wrong = secret_.proof->check(body); !wrong.ok()) {
    auto here = connects_ ? fmt::format("{} does not accept the secret that was given here", peer_name_) : std::string(wrong.message());
    return refuse(wrong.message(), std::move(here));
  }
  secret_.is_proven = true;
  if (!connects_) {
    make_carriers();
    return {};
  }
  auto answer = secret_.proof->answer();
  if (!answer) return answer.error();
  say(frame_kind::proof, 0, *std::move(answer));
  say_hello({}, 0);
  return {};
}

status session::greeted(std::span<const std::byte> body) {
  if (secret_.proof && !secret_.is_proven)
    return refuse("it requires a secret, but none was given", "the peer has no secret, but one is required");
  auto told = channel::decode_hello(body);
  if (!told) return told.error();
  if (!secret_.proof && secret_.when_proven && !secret_.is_proven) {  // TLS alone is the proof, if TLS is required
    secret_.has_begun.store(true);
    secret_.is_proven = true;
    make_carriers();
  }
  peer_ = told->who;
  peer_name_ = fmt::format("process {}", peer_.pid);
  if (local_) {
    const auto known = connection_->credentials_of_other();
    if (!known) return known.error();
    if (known->uid != geteuid()) return {errc::permission_denied, fmt::format("the peer is a process of user {}", known->uid)};
    peer_.pid = known->pid;
    peer_.vouched = true;
    peer_name_ = fmt::format("process {} of user {}", known->pid, known->uid);
  }
  known_as_ = acquaintance::greeted;
  agree_on_ring(told->ring_bytes);
  auto here = channel::own_identity();
  here.connections = local_ ? 0 : with_.connections;
  for (std::size_t i = 0; i < carriers_.size(); ++i) {
    const auto& each = *with_.channels[i];
    auto refusal = each.refuses(peer_, here, {*with_.door, *with_.fabrics, local_}).value_or("");
    if (refusal.empty() && carriers_[i] == nullptr) refusal = not_used_here;
    receiving_.push_back({std::string(each.name()), std::move(refusal)});
  }
  say(frame_kind::reach, 0, channel::encode(receiving_));
  return {};
}

status session::reached(std::span<const std::byte> body) {
  if (is_ready()) return channel::out_of_turn("its channels");
  const auto told = channel::decode_reach(body);
  if (!told) return told.error();
  for (const auto& each : *told) {  // the receiving end chooses, so its order is used
    if (find(receiving_, each.name) != nullptr && find(sending_, each.name) == nullptr) sending_.push_back(each);
  }
  for (auto& each : receiving_) {
    if (find(*told, each.name) != nullptr) continue;
    sending_.push_back({each.name, std::string(not_used_there)});
    each.refusal = not_used_there;
  }
  for (auto& each : receiving_) {  // both ends must support the fabric
    if (!find_channel(each.name)->over_fabric()) continue;
    auto& theirs = *std::find_if(sending_.begin(), sending_.end(), [&](const auto& other) { return other.name == each.name; });
    if (each.refusal.empty() && !theirs.refusal.empty()) {
      each.refusal = "the peer: " + theirs.refusal;
    } else if (theirs.refusal.empty()) {
      theirs.refusal = each.refusal;
    }
  }
  if (std::none_of(sending_.begin(), sending_.end(), [](const auto& each) { return each.refusal.empty(); })) {
    return {errc::unsupported, fmt::format("no channel can reach the peer ({})", reasons_of(sending_))};
  }
  tell_carriers(*told);
  known_as_ = acquaintance::ready;
  known_.notify_all();
  return {};
}

// Passes the outcome of the handshake to the carriers, and records the numbers that the peer's frames use for them.
void session::tell_carriers(const std::vector<channel::reached_channel>& told) {
  const channel::channel* first_between_devices = nullptr;
  for (std::size_t i = 0; i < receiving_.size() && first_between_devices == nullptr; ++i) {
    if (receiving_[i].refusal.empty() && with_.channels[i]->serves(true, true)) first_between_devices = with_.channels[i];
  }
  carriers_of_other_.resize(std::min<std::size_t>(told.size(), 256));
  for (std::size_t i = 0; i < carriers_.size(); ++i) {
    if (carriers_[i] == nullptr) continue;
    const auto& name = receiving_[i].name;
    const channel::agreement on{receiving_[i].refusal.empty(), find(sending_, name)->refusal.empty(),
                                with_.channels[i] == first_between_devices};
    carriers_[i]->agreed(on);
    if (!on.receives && !on.sends) continue;
    const auto number = static_cast<std::size_t>(find(told, name) - told.data());
    if (number < carriers_of_other_.size()) carriers_of_other_[number] = carriers_[i].get();
  }
}

const channel::channel* session::find_channel(std::string_view name) const noexcept {
  const auto found = std::find_if(with_.channels.begin(), with_.channels.end(), [&](const auto* each) { return each->name() == name; });
  return found == with_.channels.end() ? nullptr : *found;
}

status session::choose(receive_operation& op, std::size_t tensor) {
  return op.on_streams && op.places[tensor].on_device() ? choose_in_order(op, tensor) : choose_best(op, tensor);
}

// Chooses the best carrier that keeps stream order. If there is none, chooses the best one into host memory; the stream then waits for that
// carrier.
status session::choose_in_order(receive_operation& op, std::size_t tensor) {
  const bool from_device = !op.tensors[tensor].device.empty();
  for (std::size_t i = 0; i < carriers_.size(); ++i) {
    const auto& each = *with_.channels[i];
    if (!each.keeps_stream_order() || !each.serves(from_device, true) || !receiving_[i].refusal.empty()) continue;
    if (carriers_[i]->take(op, tensor)) continue;
    op.by[tensor] = carriers_[i].get();
    return {};
  }
  if (op.by_host == nullptr) op.by_host = std::make_unique<gathered>(with_);
  const auto room = op.by_host->add(op.targets[tensor], fmt::format("a tensor from {}", peer_name_));
  if (!room) return room.error();
  op.targets[tensor] = *room;
  op.places[tensor] = {};
  return choose_best(op, tensor);
}

status session::choose_best(receive_operation& op, std::size_t tensor) {
  const auto& from = op.tensors[tensor];
  const auto& to = op.places[tensor];
  const bool from_device = !from.device.empty();
  auto& chosen = op.by[tensor];
  chosen = known_way(from.device, to);
  if (chosen != nullptr && !chosen->take(op, tensor)) {
    make_room_for_successor(op, tensor);
    return {};
  }
  chosen = nullptr;
  bool of_all_tensors = true;  // no channel refused only this tensor
  std::vector<channel_choice> choices;
  for (std::size_t i = 0; i < carriers_.size(); ++i) {
    if (!with_.channels[i]->serves(from_device, to.on_device())) continue;
    auto refusal = receiving_[i].refusal;
    if (refusal.empty() && chosen == nullptr) {
      refusal = carriers_[i]->take(op, tensor).value_or("");
      of_all_tensors = of_all_tensors && refusal.empty();
    }
    const bool takes = refusal.empty() && chosen == nullptr;
    if (takes) chosen = carriers_[i].get();
    choices.push_back({receiving_[i].name, takes, std::move(refusal)});
  }
  if (chosen != nullptr) make_room_for_successor(op, tensor);
  auto source = from_device ? from.device : std::string("host");
  auto target = core::name_of(to);
  const std::lock_guard guard(lock_);
  if (chosen == nullptr && !why_over().ok()) return why_over();
  if (chosen == nullptr) {
    return {errc::unsupported,
            fmt::format("no channel can transfer from the peer's {} to the local {} ({})", source, target, reasons_of(choices))};
  }
  remember_way(from.device, to, of_all_tensors ? chosen : nullptr);
  note_route(source, target, std::move(choices));
  return {};
}

// Prepares the fallback carrier for the tensor before the transfer starts.
void session::make_room_for_successor(receive_operation& op, std::size_t tensor) const {
  auto* const next = successor_of(*op.by[tensor], !op.tensors[tensor].device.empty(), op.places[tensor].on_device());
  if (next != nullptr) (void)next->delivery_of(op);
}

// Returns null if there is no fallback or it cannot be used.
channel::carrier* session::successor_of(const channel::carrier& by, bool from_device, bool to_device) const noexcept {
  const auto name = by.of().successor();
  for (std::size_t i = 0; i < carriers_.size() && !name.empty(); ++i) {
    const auto& each = *with_.channels[i];
    if (each.name() == name && each.serves(from_device, to_device) && receiving_[i].refusal.empty()) return carriers_[i].get();
  }
  return nullptr;
}

// Returns the carrier used for the last tensor between these places, if no tensor could use a better one.
channel::carrier* session::known_way(const std::string& from, const staging::place& to) {
  const std::lock_guard guard(lock_);
  const auto found = ways_.find({from, to.via});
  return found == ways_.end() ? nullptr : found->second;
}

// Call with the lock held. by: null if another tensor could use a different carrier, for example if only this tensor cannot be mapped.
void session::remember_way(const std::string& from, const staging::place& to, channel::carrier* by) {
  const std::pair<std::string, const staging::link*> ends(from, to.via);
  if (by == nullptr) {
    ways_.erase(ends);
  } else if (ways_.size() < most_routes) {
    ways_[ends] = by;
  }
}

void session::note_route(const std::string& from, const std::string& to, std::vector<channel_choice> channels) {
  const std::pair key(from, to);
  if (const auto found = routes_.find(key); found != routes_.end()) {
    found->second = std::move(channels);
  } else if (routes_.size() < most_routes) {
    routes_.emplace(key, std::move(channels));
  }
}

void session::note_written(const channel::channel& by, const next_operation& op) {
  for (std::size_t i = 0; i < op.posted->targets.size(); ++i) {
    const auto& from = op.come->facts.tensors[i].device;
    const auto& to = op.posted->targets[i].device;
    if (routes_.count({from, to}) > 0) continue;
    std::vector<channel_choice> choices;
    for (const auto* each : with_.channels) {
      if (each->serves(true, true)) choices.push_back({std::string(each->name()), each == &by, find(receiving_, each->name())->refusal});
    }
    note_route(from, to, std::move(choices));
  }
}

result<pipe_plan> session::explain(deadline_clock::time_point until) {
  std::unique_lock guard(lock_);
  if (!known_.wait_until(guard, until, [this] { return is_ready() || !why_over().ok(); })) {
    return status(errc::timed_out, "the peer has not replied yet");
  }
  if (!is_ready()) return why_over();
  pipe_plan told;
  told.transport = local_ ? "unix" : with_.tls != nullptr ? "tls" : "tcp";
  told.peer = peer_name_;
  const auto list = [&](const std::vector<channel::reached_channel>& from) {
    std::vector<channel_choice> out;
    bool chosen = false;
    for (const auto& each : from) {
      const auto found =
          std::find_if(with_.channels.begin(), with_.channels.end(), [&](const auto* of) { return of->name() == each.name; });
      const auto* const by = carriers_[static_cast<std::size_t>(found - with_.channels.begin())].get();
      auto refusal = each.refusal.empty() && by != nullptr ? by->refusal() : each.refusal;
      const bool could = refusal.empty() && (*found)->serves(false, false);
      out.push_back({each.name, could && !std::exchange(chosen, chosen || could), std::move(refusal)});
    }
    return out;
  };
  told.sending = list(sending_);
  told.receiving = list(receiving_);
  for (const auto& each : carriers_) {
    if (each != nullptr) told.connections = std::max(told.connections, each->connections());
  }
  for (const auto& [ends, channels] : routes_) told.received.push_back({ends.first, ends.second, channels});
  return told;
}

}  // namespace penstock::pipes
