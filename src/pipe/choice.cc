// Pipes: what the ends tell of each other, and the channel for each tensor.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "pipe/session.hpp"

namespace penstock::pipes {

namespace {

using channel::carriage;
using channel::frame_kind;

constexpr std::size_t most_routes = 256;
constexpr std::string_view not_used_there = "the other end does not use it";

// Null: it is not in the list.
const channel::reached_channel* find(const std::vector<channel::reached_channel>& list, std::string_view name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const auto& each) { return each.name == name; });
  return found == list.end() ? nullptr : &*found;
}

// Of channels with names and refusals.
template <class Channels>
std::string reasons_of(const Channels& refused) {
  std::string reasons;
  for (const auto& each : refused) reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", each.name, each.refusal);
  return reasons;
}

}  // namespace

// The other end is told why in the first of these words, as far as it listens; and this one in the others.
status session::refuse(std::string_view to_other, std::string here) {
  say(frame_kind::refused, 0, channel::encode_text(to_other));
  return {errc::permission_denied, std::move(here)};
}

status session::challenged(std::span<const std::byte> body) {
  if (!proof_) return refuse("a secret was given, and it asks for none", "it has a secret, and none was given here");
  if (auto wrong = proof_->challenged(body); !wrong.ok()) return wrong;
  if (connects_) return {};
  begins_to_prove_.store(true);
  auto answer = proof_->answer();
  if (!answer) return answer.error();
  say(frame_kind::challenge, 0, proof_->challenge());
  say(frame_kind::proof, 0, *std::move(answer));
  return {};
}

// Who listens proves it first, so that who has connected tells a stranger nothing.
status session::proven(std::span<const std::byte> body) {
  if (!proof_ || is_proven_) return channel::out_of_turn("a proof");
  if (auto wrong = proof_->check(body); !wrong.ok()) {
    auto here = connects_ ? fmt::format("{} does not accept the secret that was given here", peer_name_) : std::string(wrong.message());
    return refuse(wrong.message(), std::move(here));
  }
  is_proven_ = true;
  if (!connects_) return {};
  auto answer = proof_->answer();
  if (!answer) return answer.error();
  say(frame_kind::proof, 0, *std::move(answer));
  say_hello({}, 0);
  return {};
}

status session::greeted(std::span<const std::byte> body) {
  if (proof_ && !is_proven_) return refuse("it asks for a secret, and none was given", "it gives no secret, and is asked for one");
  auto told = channel::decode_hello(body);
  if (!told) return told.error();
  peer_ = told->who;
  peer_name_ = fmt::format("process {}", peer_.pid);
  if (local_) {
    const auto known = connection_->credentials_of_other();
    if (!known) return known.error();
    if (known->uid != geteuid()) return {errc::permission_denied, fmt::format("the other end is a process of user {}", known->uid)};
    peer_.pid = known->pid;
    peer_.vouched = true;
    peer_name_ = fmt::format("process {} of user {}", known->pid, known->uid);
  }
  greeted_ = true;
  agree_on_ring(told->ring_bytes);
  auto here = channel::own_identity();
  here.connections = local_ ? 0 : with_.connections;
  if (stripes_ != nullptr) stripes_->agree(peer_.connections);
  for (const auto* each : with_.channels) {
    auto refusal = each->refuses(peer_, here, {*with_.door, *with_.fabrics, local_});
    receiving_.push_back({std::string(each->name()), refusal.value_or("")});
  }
  say(frame_kind::reach, 0, channel::encode(receiving_));
  return {};
}

status session::reached(std::span<const std::byte> body) {
  if (ready_) return channel::out_of_turn("its channels");
  const auto told = channel::decode_reach(body);
  if (!told) return told.error();
  for (const auto& each : *told) {  // the other end chooses, so its order holds
    if (find(receiving_, each.name) != nullptr && find(sending_, each.name) == nullptr) sending_.push_back(each);
  }
  for (auto& each : receiving_) {
    if (find(*told, each.name) != nullptr) continue;
    sending_.push_back({each.name, std::string(not_used_there)});
    each.refusal = not_used_there;
  }
  for (auto& each : receiving_) {  // a fabric that one end cannot use is of no use to the other
    if (channel::find_channel(each.name)->how() != carriage::fabric) continue;
    auto& theirs = *std::find_if(sending_.begin(), sending_.end(), [&](const auto& other) { return other.name == each.name; });
    if (each.refusal.empty() && !theirs.refusal.empty()) {
      each.refusal = "the other end: " + theirs.refusal;
    } else if (theirs.refusal.empty()) {
      theirs.refusal = each.refusal;
    }
  }
  if (std::none_of(sending_.begin(), sending_.end(), [](const auto& each) { return each.refusal.empty(); })) {
    return {errc::unsupported, fmt::format("no channel leads to the other end ({})", reasons_of(sending_))};
  }
  for (const auto& each : sending_) {
    const auto how = channel::find_channel(each.name)->how();
    if (how == carriage::map && !each.refusal.empty()) shares_.store(false);
    if (how == carriage::stripe && each.refusal.empty() && find(receiving_, each.name)->refusal.empty() && stripes_ != nullptr) {
      stripes_->allow();
    }
  }
  // Between devices, the best that there is.
  const auto best = std::find_if(receiving_.begin(), receiving_.end(), [](const auto& each) {
    return each.refusal.empty() && channel::find_channel(each.name)->serves(true, true);
  });
  if (best != receiving_.end() && channel::find_channel(best->name)->how() == carriage::map && connection_->has_ring()) {
    pushes_by_.store(channel::find_channel(best->name));
  }
  ready_ = true;
  known_.notify_all();
  return {};
}

std::optional<std::string> session::reach(choice& chosen, const channel::tensor_facts& from, const staging::place& to) {
  const bool emulated = is_of_host_device(from.device);
  switch (chosen.by->how()) {
    case carriage::read:
    case carriage::send:
      return std::nullopt;
    case carriage::stripe: {
      auto none = stripes_ == nullptr ? std::string("it has its connection alone") : stripes_->refusal();
      if (none.empty()) return std::nullopt;
      return none;
    }
    case carriage::copy: {
      chosen.source = reinterpret_cast<const void*>(from.address);
      const auto there = with_.runtime->memory().place_of(chosen.source, from.length);
      const bool known = there && there->on_device() && there->emulated() == to.emulated();
      if (!known) return "the sender's memory is not known to this engine";
      to.via->session().allow_copies_from(there->via->session());
      return std::nullopt;
    }
    case carriage::fabric: {
      auto line = line_from(from.device, to);
      if (!line) return std::string(line.error().message());
      chosen.line = *std::move(line);
      return std::nullopt;
    }
    case carriage::map:
      break;
  }
  if (emulated != to.emulated()) return "devices of two kinds";
  if (from.parts.empty()) return from.not_shared.empty() ? "the sender does not share its memory" : from.not_shared;
  for (const auto& each : from.parts) {
    auto opened = imports_.open(to.via->session(), each.handle, each.generation, peer_.pid);
    if (!opened) return std::string(opened.error().message());
    chosen.imports.push_back(*std::move(opened));
  }
  return std::nullopt;
}

result<session::choice> session::choose(const channel::tensor_facts& from, const staging::place& to) {
  const bool from_device = !from.device.empty();
  choice likely{known_way(from.device, to), nullptr, {}, nullptr};
  if (likely.by != nullptr && !reach(likely, from, to)) return likely;
  choice chosen;
  bool of_all_tensors = true;  // whatever was refused is so whichever tensor it is
  std::vector<channel_choice> choices;
  for (const auto* each : with_.channels) {
    if (!each->serves(from_device, to.on_device())) continue;
    choice candidate{each, nullptr, {}, nullptr};
    auto refusal = find(receiving_, each->name())->refusal;
    if (refusal.empty() && chosen.by == nullptr) {
      refusal = reach(candidate, from, to).value_or("");
      of_all_tensors = of_all_tensors && refusal.empty();
    }
    if (refusal.empty() && chosen.by == nullptr) chosen = std::move(candidate);
    choices.push_back({std::string(each->name()), chosen.by == each, std::move(refusal)});
  }
  auto source = from_device ? from.device : std::string("host");
  auto target = core::name_of(to);
  const std::lock_guard guard(lock_);
  if (chosen.by == nullptr && !over().ok()) return over();
  if (chosen.by == nullptr) {
    return status(errc::unsupported,
                  fmt::format("no channel leads from {} of the other end to {} of this one ({})", source, target, reasons_of(choices)));
  }
  remember_way(from.device, to, of_all_tensors ? chosen.by : nullptr);
  note_route(source, target, std::move(choices));
  return chosen;
}

// Where a fabric fails: over the connection. Null: that may not be used.
const channel::channel* session::sends_instead(bool from_device, bool to_device) const {
  const auto can = [&](const channel::channel* each) {
    return each->how() == carriage::send && each->serves(from_device, to_device) && find(receiving_, each->name())->refusal.empty();
  };
  const auto found = std::find_if(with_.channels.begin(), with_.channels.end(), can);
  return found == with_.channels.end() ? nullptr : *found;
}

// The channel that the last tensor took from there to there, where no other tensor could take a better one.
const channel::channel* session::known_way(const std::string& from, const staging::place& to) {
  const std::lock_guard guard(lock_);
  const auto found = ways_.find({from, to.via});
  return found == ways_.end() ? nullptr : found->second;
}

// With the lock. by: null where another tensor could take another way, as where only this one cannot be mapped.
void session::remember_way(const std::string& from, const staging::place& to, const channel::channel* by) {
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

void session::note_pushed(const channel::channel& by, const next_operation& op) {
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
  if (!known_.wait_until(guard, until, [this] { return ready_ || !over().ok(); })) {
    return status(errc::timed_out, "the other end has not answered yet");
  }
  if (!ready_) return over();
  pipe_plan told;
  told.transport = local_ ? "unix" : "tcp";
  told.peer = peer_name_;
  const auto list = [&](const std::vector<channel::reached_channel>& from) {
    std::vector<channel_choice> out;
    bool chosen = false;
    for (const auto& each : from) {
      const auto& named = *channel::find_channel(each.name);
      auto refusal = each.refusal;
      if (refusal.empty() && named.how() == carriage::stripe && stripes_ != nullptr) refusal = stripes_->refusal();
      const bool could = refusal.empty() && named.serves(false, false);
      out.push_back({each.name, could && !std::exchange(chosen, chosen || could), std::move(refusal)});
    }
    return out;
  };
  told.sending = list(sending_);
  told.receiving = list(receiving_);
  told.connections = stripes_ == nullptr ? 1 : stripes_->count();
  for (const auto& [ends, channels] : routes_) told.received.push_back({ends.first, ends.second, channels});
  return told;
}

}  // namespace penstock::pipes
