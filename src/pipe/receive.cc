// Pipes: receiving the tensors of a message.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "channel/device_copies.hpp"
#include "pipe/session.hpp"

namespace penstock::pipes {

namespace {

using channel::frame_kind;

// Returns true if the process we are reading from has died.
bool has_died(const status& why) { return why.domain() == error_domain::os && why.native() == ESRCH; }

status received_before() { return {errc::invalid_argument, "this message has already been received"}; }

}  // namespace

// --- starting to receive

core::operation* session::receive(const std::shared_ptr<arrived_message>& message, std::vector<incoming_target> targets,
                                  const pipe_operation_options& options, io_callback callback, bool on_streams) {
  auto& pipe = *message->pipe;
  auto* op = new receive_operation(message->pipe, pipe.with_.runtime);
  op->set_deadline(options.deadline);
  op->set_callback(std::move(callback), options.calls_at_once);
  op->retain();
  op->message = message;
  op->number = message->number;
  op->tensors = message->facts.tensors;
  op->targets = std::move(targets);
  op->on_streams = on_streams;
  pipe.begin_receive(*op);
  if (!op->stop_reason().ok()) pipe.stop(*op);
  return op;
}

// Validates the targets and chooses the channels before anything starts.
status session::prepare(receive_operation& op) {
  if (op.message->pushed) return received_before();
  const auto& tensors = op.message->facts.tensors;
  if (op.targets.size() != tensors.size()) {
    return {errc::invalid_argument, fmt::format("{} targets were given for {} tensors", op.targets.size(), tensors.size())};
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& target = op.targets[i];
    if (target.length != tensors[i].length) {
      return {errc::invalid_argument, fmt::format("target {} has {} bytes, but its tensor has {}", i, target.length, tensors[i].length)};
    }
    op.bytes += target.length;
    const auto found = place_of_part(*with_.runtime, target.memory, target.length, "target", i);
    if (!found) return found.error();
    op.places.push_back(*found);
    if (!found->on_device() || op.on_streams) continue;
    if (auto problem = op.turn.add(*found->via, target.stream); !problem.ok()) {
      return problem.with_context(fmt::format("stream of target {}", i));
    }
  }
  op.by.resize(tensors.size());
  auto in_line = op.message->in_line_bytes();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].length == 0) continue;
    if (!tensors[i].in_line) {
      if (auto problem = choose(op, i); !problem.ok()) return problem.with_context(fmt::format("tensor {}", i));
      continue;
    }
    const auto make = [&] { return std::make_unique<channel::device_copies>(with_, *connection_, op); };
    if (op.places[i].on_device()) op.delivery_of<channel::device_copies>(nullptr, make).add(i, 0, tensors[i].length, in_line.data());
    in_line = in_line.subspan(tensors[i].length);
  }
  op.all_deliveries_known();
  if (op.by_host != nullptr) ++op.parts_left;  // until the streams have taken the bytes from host memory
  return op.watch_deadline();
}

void session::begin_receive(receive_operation& op) noexcept {
  auto& message = *op.message;
  auto problem = or_no_memory([&] { return prepare(op); });
  bool known = false;
  with_lock([&](endings& ended) {
    if (problem.ok() && message.received) problem = received_before();
    if (problem.ok()) problem = closed_ ? pipe_closed() : message.withdrawn;
    if (problem.ok() && op.needs_other_end()) problem = lost_;
    if (!problem.ok()) {
      if (!message.received) message.not_received = problem;
      conclude(op, {0, problem}, ended);
      known = true;
      return;
    }
    message.received = true;
    receiving_now_.emplace(message.number, &op);
    op.is_alone = come_.empty() && receiving_now_.size() == 1;
    op.retain();  // on behalf of its parts
    op.move_to(receive_operation::stage::waiting);
    known = true;
    not_received_.erase(message.number);
  });
  if (!known) {  // the step ran out of memory
    op.end();
    op.tell_end({0, no_memory()});
    return;
  }
  if (!problem.ok()) return;
  op.turn.over() ? begin_parts(op) : await_turn(op, with_.runtime->feeders());
}

void session::may_begin(receive_operation& op, const status& outcome) noexcept {
  if (!outcome.ok()) with_lock([&](endings& ended) { abandon(op, outcome, ended); });
  begin_parts(op);
}

void session::begin_parts(receive_operation& op) noexcept {
  bool begins = false;
  with_lock([&](endings& ended) {
    begins = op.at() == receive_operation::stage::waiting;
    if (!begins) return;
    op.move_to(receive_operation::stage::begun);
    op.for_deliveries([&](channel::delivery& each) { each.ask(ended); });
  });
  if (!begins) {
    if (op.by_host != nullptr) op.by_host->put_nothing();
    return;
  }
  auto in_line = op.message->in_line_bytes();
  for (std::size_t i = 0; i < op.targets.size() && !in_line.empty(); ++i) {
    const auto bytes = op.targets[i].length;
    if (bytes > 0 && !op.places[i].on_device()) std::memcpy(op.targets[i].memory, in_line.data(), bytes);
    in_line = in_line.subspan(bytes);
  }
  op.for_deliveries([](channel::delivery& each) { each.start(); });
  auto* const by_host = op.by_host.get();
  op.parts_ended(1);
  if (by_host != nullptr) by_host->put_onto_streams();  // last, so that nothing that arrives earlier waits behind it
}

// --- completion

// Drops parts that have not started. The operation completes when the started ones do.
void session::abandon(channel::incoming& message, const status& why, endings& ended) {
  auto& op = static_cast<receive_operation&>(message);
  op.fail(why);
  std::uint64_t parts = 0;
  op.for_deliveries([&](channel::delivery& each) { parts += each.abandon(); });
  if (op.at() == receive_operation::stage::waiting) {
    op.move_to(receive_operation::stage::begun);
    parts = op.arriving_left.load();
    // This cannot complete the last part: the arriving parts are still outstanding.
    op.parts_left -= op.parts_left.load() - parts - (op.by_host != nullptr ? 1 : 0);
  }
  if (parts > 0) ended.of_parts.emplace_back(&op, parts);
}

// Hands the tensor to its carrier's fallback, if both ends use that fallback for these kinds of memory.
bool session::hand_over(channel::incoming& message, std::size_t tensor, endings& /*ended*/) {
  auto* const to = successor_of(*message.by[tensor], !message.tensors[tensor].device.empty(), message.places[tensor].on_device());
  if (to == nullptr) return false;
  message.add_parts(to->take_over(message, tensor));
  message.by[tensor] = to;
  return true;
}

void session::all_ended(receive_operation& op) noexcept {
  op.for_deliveries([](channel::delivery& each) { each.let_go(); });
  finish(op, outcome_of(op));
}

// Tensors staged in host memory are released to their streams even if other streams still delay the message: their own streams may be
// ready.
void session::all_arrived(receive_operation& op) noexcept {
  if (op.by_host == nullptr) return;
  op.by_host->come(outcome_of(op), [&op](const status& ended) {
    if (!ended.ok()) op.fail(ended);
    op.parts_passed(1);
  });
}

// Returns the outcome of the received parts.
status session::outcome_of(receive_operation& op) noexcept {
  const auto& facts = op.message->facts;
  return or_no_memory([&]() -> status {
    if (auto why = op.stop_reason(); !why.ok()) return why;
    if (auto why = op.error(); !why.ok() || !op.reads_memory()) return why;
    // Check that the tensors were still unchanged after the last one was read.
    std::uint64_t word = 0;
    const auto read =
        with_.door->read_memory(static_cast<pid_t>(peer_.pid), facts.guard_address, reinterpret_cast<std::byte*>(&word), sizeof(word));
    if (read.ok() && word == facts.guard_value) return {};
    if (has_died(read)) return read;
    return {errc::closed, "the sender has withdrawn the message"};
  });
}

void session::finish(receive_operation& op, status outcome) noexcept {
  const bool from_memory = op.reads_memory();
  with_lock([&](endings& ended) {
    if (has_died(outcome)) outcome = {errc::closed, peer_name_ + " has died"};
    // Prefer the known cause.
    if (!outcome.ok() && op.stop_reason().ok() && from_memory) {
      if (!op.message->withdrawn.ok()) {
        outcome = op.message->withdrawn;
      } else if (!why_over().ok()) {
        outcome = why_over();
      }
    }
    end(op, {0, outcome}, ended);
  });
  op.release();
}

void session::end(receive_operation& op, io_result outcome, endings& ended) {
  receiving_now_.erase(op.message->number);
  const bool told = op.message->has_tensors_elsewhere();
  if (!outcome.ok()) {
    if (told) say(frame_kind::taken, op.message->number, outcome.error);
    conclude(op, std::move(outcome), ended);
    return;
  }
  std::vector<const channel::channel*> by;
  std::vector<channel::carried> all;  // per entry of by
  for (std::size_t i = 0; i < op.targets.size(); ++i) {
    outcome.bytes_done += op.targets[i].length;
    const auto& of = op.by[i] != nullptr ? op.by[i]->of() : channel::in_line_channel();
    const auto at = static_cast<std::size_t>(std::find(by.begin(), by.end(), &of) - by.begin());
    if (at == by.size()) {
      by.push_back(&of);
      all.push_back({std::string(of.name()), 0, 0});
    }
    ++all[at].tensors;
    all[at].bytes += op.targets[i].length;
  }
  for (std::size_t i = 0; i < by.size(); ++i) {
    if (all[i].bytes > 0) count(*by[i], {.name = {}, .received_tensors = all[i].tensors, .received_bytes = all[i].bytes});
  }
  if (told) say(frame_kind::taken, op.message->number, channel::encode(all));
  conclude(op, std::move(outcome), ended);
}

void session::stop(receive_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (why.ok() || with_.runtime->forked()) return;
  bool stopped = false;
  with_lock([&](endings& ended) {
    if (op.at() != receive_operation::stage::waiting && op.at() != receive_operation::stage::begun) return;
    stopped = true;
    op.retain();
    abandon(op, why, ended);
  });
  if (!stopped) return;
  op.for_deliveries([](channel::delivery& each) { each.stop(); });
  op.release();
}

}  // namespace penstock::pipes
