#include "core/pipe_core.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"

namespace penstock::core {

namespace {

using channel::frame_kind;
using channel::limits;

status unexpected(std::string_view what) { return {errc::io, fmt::format("the other end sent {} out of turn", what)}; }

}  // namespace

// --- incoming messages

bool incoming_core::has_tensors_elsewhere() const {
  return std::any_of(facts.tensors.begin(), facts.tensors.end(), [](const channel::tensor_facts& each) { return !each.in_line; });
}

status check_host_memory(runtime& with, const void* memory, std::uint64_t length, std::string_view kind, std::size_t index) {
  if (length == 0) return {};
  if (memory == nullptr) return {errc::bad_memory, fmt::format("{} {}: null pointer", kind, index)};
  const auto facts = with.memory().describe(memory);
  if (!facts) return facts.error().with_context(fmt::format("{} {}", kind, index));
  if (facts->kind != memory_kind::device) return {};
  return {errc::unsupported, fmt::format("{} {} lies in memory of {}: pipes carry host memory", kind, index, facts->device)};
}

// --- the beginning

result<std::shared_ptr<pipe_core>> pipe_core::make(const pipe_shared& with, sys::owned_socket over, bool local, bool connecting) {
  auto made = std::make_shared<pipe_core>(with, local);
  if (auto problem = made->start(made, std::move(over), connecting); !problem.ok()) return problem;
  return made;
}

status pipe_core::start(const std::shared_ptr<pipe_core>& self, sys::owned_socket over, bool connecting) {
  socket_ = over.get();
  connection_ = channel::connection::make(with_.door, with_.reactor, std::move(over), connecting);
  auto body = channel::encode(channel::hello{channel::wire_version, channel::own_identity()});
  enqueue({{static_cast<std::uint32_t>(frame_kind::hello), 0, 0, 0, body.size()}, std::move(body), {}, {}});
  if (auto problem = connection_->start(self); !problem.ok()) return problem;
  connection_->flush();
  return {};
}

pipe_core::~pipe_core() {
  if (connection_ != nullptr && !with_.runtime->forked()) connection_->close();
}

void pipe_core::enqueue(channel::outgoing_frame frame) { (void)connection_->enqueue(std::move(frame)); }  // else all are told of the end

void pipe_core::tell(frame_kind kind, std::uint64_t message, const status& why) {
  auto body = channel::encode_text(why.message());
  const auto size = body.size();
  enqueue({{static_cast<std::uint32_t>(kind), channel::code_of(why), message, 0, size}, std::move(body), {}, {}});
}

status pipe_core::pipe_closed() { return {errc::closed, "the pipe was closed"}; }

status pipe_core::over() const { return closed_ ? pipe_closed() : lost_; }

// --- what the other end says, on the reactor's thread

result<std::span<std::byte>> pipe_core::begins(const channel::frame_head& head) {
  const std::lock_guard guard(lock_);
  if (closed_) return std::span<std::byte>();  // what comes goes nowhere, until what is queued has left
  const auto kind = static_cast<frame_kind>(head.kind);
  if (greeted_ == (kind == frame_kind::hello)) return unexpected("its greeting");
  std::uint64_t most = 0;
  switch (kind) {
    case frame_kind::hello:
    case frame_kind::reach:
    case frame_kind::taken:
    case frame_kind::withdrawn:
      most = limits::text_bytes;
      break;
    case frame_kind::announcement:
      if (!ready_) return unexpected("a message");
      most = limits::announcement_bytes;
      break;
    case frame_kind::tensor: {
      if (head.length == 0 || head.length > limits::frame_bytes) return unexpected("a part of a tensor");
      const auto found = receiving_now_.find(head.message);
      if (found == receiving_now_.end() || found->second->by->pulls()) return std::span<std::byte>();  // it was stopped
      auto& op = *found->second;
      if (head.part >= op.targets.size() || op.arrived_bytes[head.part] + head.length > op.targets[head.part].length) {
        return unexpected("a part of a tensor");
      }
      return std::span(static_cast<std::byte*>(op.targets[head.part].memory) + op.arrived_bytes[head.part], head.length);
    }
    case frame_kind::wanted:
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

status pipe_core::arrived(const channel::frame_head& head) {
  status wrong;
  with_lock([&](endings& ended) {
    if (closed_) return;
    switch (static_cast<frame_kind>(head.kind)) {
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
        if (const auto found = announced_.find(head.message); found != announced_.end() && !found->second->in_line) {
          send_tensors(*found->second);
        }
        break;
      case frame_kind::tensor:
        tensor_arrived(head, ended);
        break;
      case frame_kind::taken:
        if (const auto found = announced_.find(head.message); found != announced_.end() && !found->second->in_line) {
          auto outcome = channel::status_of(head.code, body_);
          end(*found->second, {outcome.ok() ? found->second->tensor_bytes : 0, outcome}, ended);
        }
        break;
      case frame_kind::withdrawn: {
        const auto why = channel::status_of(head.code == 0 ? static_cast<std::uint32_t>(errc::cancelled) : head.code, body_);
        if (const auto found = not_received_.find(head.message); found != not_received_.end()) {
          if (const auto message = found->second.lock(); message != nullptr) message->withdrawn = why;
          not_received_.erase(found);
        } else if (const auto running = receiving_now_.find(head.message); running != receiving_now_.end()) {
          running->second->message->withdrawn = why;
          running->second->stopping.store(true);  // the pieces end it
          if (!running->second->by->pulls()) end(*running->second, {0, why}, ended);
        }
        break;
      }
      case frame_kind::credit:
        if (head.code > messages_ahead_ || head.part > bytes_ahead_) {
          wrong = unexpected("credit");
          break;
        }
        messages_ahead_ -= head.code;
        bytes_ahead_ -= head.part;
        announce_what_may();
        break;
    }
  });
  return wrong;
}

status pipe_core::greeted(std::span<const std::byte> body) {
  auto told = channel::decode_hello(body);
  if (!told) return told.error();
  peer_ = told->who;
  peer_name_ = fmt::format("process {}", peer_.pid);
  if (local_) {
    const auto known = with_.door->credentials_of(socket_);
    if (!known) return known.error();
    if (known->uid != geteuid()) return {errc::permission_denied, fmt::format("the other end is a process of user {}", known->uid)};
    peer_.pid = known->pid;
    peer_.vouched = true;
    peer_name_ = fmt::format("process {} of user {}", known->pid, known->uid);
  }
  greeted_ = true;
  for (const auto* each : with_.channels) {
    auto refusal = each->refuses(peer_, channel::own_identity(), *with_.door);
    receiving_.push_back({std::string(each->name()), refusal.value_or("")});
  }
  auto list = channel::encode(receiving_);
  const auto size = list.size();
  enqueue({{static_cast<std::uint32_t>(frame_kind::reach), 0, 0, 0, size}, std::move(list), {}, {}});
  return {};
}

// Of the channels that may be used here, the best that the other end can receive by.
status pipe_core::reached(std::span<const std::byte> body) {
  if (ready_) return unexpected("its channels");
  auto told = channel::decode_reach(body);
  if (!told) return told.error();
  for (const auto* each : with_.channels) {
    const auto found = std::find_if(told->begin(), told->end(), [&](const auto& one) { return one.name == each->name(); });
    auto refusal = found == told->end() ? std::string("the other end does not use it") : found->refusal;
    if (refusal.empty() && send_by_ == nullptr) send_by_ = each;
    sending_.push_back({std::string(each->name()), std::move(refusal)});
  }
  if (send_by_ == nullptr) {
    std::string reasons;
    for (const auto& each : sending_) reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", each.name, each.refusal);
    return {errc::unsupported, fmt::format("no channel leads to the other end ({})", reasons)};
  }
  ready_ = true;
  known_.notify_all();
  return {};
}

status pipe_core::announced(const channel::frame_head& head, endings& ended) {
  auto message = std::make_shared<incoming_core>();
  auto facts = channel::decode_announcement(body_);
  if (!facts) return facts.error();
  message->facts = *std::move(facts);
  message->number = head.message;
  message->body = std::move(body_);
  body_ = {};
  const std::uint64_t bytes = message->body.size() - message->facts.bytes_before_payloads;
  const bool first = untaken_messages_ == 0;
  if (!first && (untaken_messages_ >= limits::announced_messages || untaken_bytes_ + bytes > limits::announced_bytes)) {
    return unexpected("more messages than there is room for");
  }
  for (const auto& each : message->facts.tensors) {
    const auto* const by = channel::find_channel(each.channel);
    const auto known = std::find_if(receiving_.begin(), receiving_.end(), [&](const auto& one) { return one.name == each.channel; });
    const bool same = each.channel == message->facts.tensors.front().channel && each.in_line == message->facts.tensors.front().in_line;
    if (by == nullptr || known == receiving_.end() || !known->refusal.empty() || !same) return unexpected("a tensor by a channel");
  }
  ++untaken_messages_;
  untaken_bytes_ += bytes;
  if (message->has_tensors_elsewhere()) not_received_.emplace(message->number, message);
  come_.push_back(std::move(message));
  deliver(ended);
  return {};
}

void pipe_core::tensor_arrived(const channel::frame_head& head, endings& ended) {
  const auto found = receiving_now_.find(head.message);
  if (found == receiving_now_.end() || found->second->by->pulls()) return;
  auto& op = *found->second;
  op.arrived_bytes[head.part] += head.length;
  if (op.arrived_bytes[head.part] < op.targets[head.part].length || --op.tensors_missing > 0) return;
  tell(frame_kind::taken, head.message, {});
  end(op, {0, {}}, ended);
}

// --- the end

void pipe_core::end_all(const status& why, endings& ended) {
  if (lost_.ok()) lost_ = why;
  while (!announced_.empty()) end(*announced_.begin()->second, {0, why}, ended);
  while (!queued_.empty()) end(*queued_.front(), {0, why}, ended);
  for (auto* op : waiting_) {
    op->ended = true;
    ended.emplace_back(op, io_result{0, why});
  }
  waiting_.clear();
  std::vector<receive_operation*> running;
  for (const auto& [number, op] : receiving_now_) running.push_back(op);
  for (auto* op : running) {
    op->stopping.store(closed_ || op->stopping.load());
    if (op->by->pulls()) continue;  // the last piece ends it
    connection_->divert(op->message->number);
    end(*op, {0, why}, ended);
  }
  known_.notify_all();
}

void pipe_core::lost(const status& why) noexcept {
  with_lock([&](endings& ended) { end_all(status(why.code(), fmt::format("{}: {}", peer_name_, why.message())), ended); });
}

// A forked child shares the socket with its parent, and has nothing to say.
void pipe_core::close() noexcept {
  if (with_.runtime->forked()) return;
  with_lock([&](endings& ended) {
    if (std::exchange(closed_, true)) return;
    end_all(pipe_closed(), ended);
    for (auto& message : come_) {
      if (message->has_tensors_elsewhere()) tell(frame_kind::taken, message->number, pipe_closed());
    }
    come_.clear();
  });
  connection_->close();
}

result<pipe_plan> pipe_core::explain() {
  using namespace std::chrono_literals;
  std::unique_lock guard(lock_);
  if (!known_.wait_for(guard, 10s, [this] { return ready_ || !over().ok(); })) {
    return status(errc::timed_out, "the other end has not answered for 10 s");
  }
  if (!ready_) return over();
  pipe_plan told;
  told.transport = local_ ? "unix" : "tcp";
  told.peer = peer_name_;
  const auto list = [](const std::vector<channel::reached_channel>& from) {
    std::vector<channel_choice> out;
    bool chosen = false;
    for (const auto& each : from) {
      const bool best = each.refusal.empty() && !std::exchange(chosen, chosen || each.refusal.empty());
      out.push_back({each.name, best, each.refusal});
    }
    return out;
  };
  told.sending = list(sending_);
  told.receiving = list(receiving_);
  return told;
}

std::vector<channel_stats> pipe_core::stats() {
  const std::lock_guard guard(lock_);
  std::vector<channel_stats> told;
  for (const auto& [name, counts] : stats_) {
    told.push_back(counts);
    told.back().name = name;
  }
  return told;
}

}  // namespace penstock::core
