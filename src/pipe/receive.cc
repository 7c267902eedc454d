// Pipes: the tensors of a message that has come.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/asynchronous.hpp"
#include "pipe/session.hpp"
#include "source/process_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::pipes {

namespace {

using channel::carriage;
using channel::frame_kind;
using channel::limits;

constexpr std::uint64_t least_part = std::uint64_t{2} << 20;  // of a tensor that is read, by one thread
constexpr std::uint64_t most_parts = 1024;
constexpr std::uint64_t read_by_caller = std::uint64_t{64} << 10;
constexpr std::uint64_t small_copy = std::uint64_t{1} << 20;

// Whose memory was to be read.
bool has_died(const status& why) { return why.domain() == error_domain::os && why.native() == ESRCH; }

status received_before() { return {errc::invalid_argument, "this message was received before"}; }

}  // namespace

// --- beginning to receive

core::operation* session::receive(const std::shared_ptr<arrived_message>& message, std::vector<incoming_target> targets,
                                  const pipe_operation_options& options, io_callback callback) {
  auto& pipe = *message->pipe;
  auto* op = new receive_operation(message->pipe, pipe.with_.runtime, pipe.peer_);
  op->set_deadline(options.deadline);
  op->set_callback(std::move(callback), options.calls_at_once);
  op->retain();
  op->message = message;
  op->targets = std::move(targets);
  pipe.begin_receive(*op);
  if (!op->stop_reason().ok()) pipe.stop(*op);
  return op;
}

namespace {

// In parts for several threads.
void cut_into_parts(receive_operation& op, std::size_t tensor, std::uint64_t part_bytes) {
  const auto& facts = op.message->facts.tensors[tensor];
  for (std::uint64_t at = 0; at < facts.length; at += part_bytes) {
    auto& added = op.read_parts.emplace_back();
    added.of = &op;
    added.address = facts.address + at;
    added.target = static_cast<std::byte*>(op.targets[tensor].memory) + at;
    added.bytes = std::min(part_bytes, facts.length - at);
  }
}

// The part of a tensor that begins at an offset.
void add_copy(receive_operation& op, std::size_t tensor, std::uint64_t at, std::uint64_t bytes, const void* source,
              pipe_imports::held import = nullptr) {
  auto& added = op.copied_parts.emplace_back();
  added.of = &op;
  added.source = std::move(import);
  added.via = op.places[tensor].via;
  added.task.source = source;
  added.task.target = static_cast<std::byte*>(op.targets[tensor].memory) + at;
  added.task.bytes = bytes;
}

void add_copies(receive_operation& op, std::size_t tensor, std::vector<pipe_imports::held> imports) {
  const auto& parts = op.message->facts.tensors[tensor].parts;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto* const source = imports[i]->base() + parts[i].offset;
    add_copy(op, tensor, at, parts[i].length, source, std::move(imports[i]));
    at += parts[i].length;
  }
}

}  // namespace

void session::add_engine_part(receive_operation& op, std::size_t tensor) {
  const auto& facts = op.message->facts.tensors[tensor];
  auto memory = source::process_memory(with_.door, static_cast<pid_t>(op.from.pid), facts.address, facts.length);
  auto& added = op.engine_parts.emplace_back();
  added.of = &op;
  added.source = core::file_core::make(with_.runtime, std::move(memory));
  added.what = {static_cast<std::byte*>(op.targets[tensor].memory), facts.length, 0, false};
}

// What it will consist of, before anything begins.
status session::prepare(receive_operation& op) {
  if (op.message->pushed) return received_before();
  const auto& tensors = op.message->facts.tensors;
  if (op.targets.size() != tensors.size()) {
    return {errc::invalid_argument, fmt::format("{} targets for {} tensors", op.targets.size(), tensors.size())};
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& target = op.targets[i];
    if (target.length != tensors[i].length) {
      return {errc::invalid_argument, fmt::format("target {} has {} bytes, its tensor {}", i, target.length, tensors[i].length)};
    }
    total += target.length;
    const auto found = place_of_part(*with_.runtime, target.memory, target.length, "target", i);
    if (!found) return found.error();
    op.places.push_back(*found);
    if (!found->on_device()) continue;
    if (auto problem = op.turn.add(*found->via, target.stream); !problem.ok()) {
      return problem.with_context(fmt::format("the stream of target {}", i));
    }
  }
  op.by.resize(tensors.size());
  op.lines.resize(tensors.size());
  const std::uint64_t part_bytes = std::max(least_part, total / most_parts);
  auto in_line = op.message->in_line_bytes();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].length == 0) continue;
    if (tensors[i].in_line) {
      if (op.places[i].on_device()) add_copy(op, i, 0, tensors[i].length, in_line.data());
      in_line = in_line.subspan(tensors[i].length);
      continue;
    }
    auto chosen = choose(tensors[i], op.places[i]);
    if (!chosen) return chosen.error().with_context(fmt::format("tensor {}", i));
    op.by[i] = chosen->by;
    switch (chosen->by->how()) {
      case carriage::read:
        if (op.places[i].on_device()) {
          add_engine_part(op, i);
        } else {
          cut_into_parts(op, i, part_bytes);
        }
        break;
      case carriage::copy:
        add_copy(op, i, 0, tensors[i].length, chosen->source);
        break;
      case carriage::map:
        add_copies(op, i, std::move(chosen->imports));
        break;
      case carriage::fabric:
        op.lines[i] = std::move(chosen->line);
        [[fallthrough]];
      case carriage::send:
      case carriage::stripe: {
        const auto each = piece_bytes(*chosen->by, tensors[i].length);
        op.sent_tensors.push_back(i);
        op.pieces_left += (tensors[i].length + each - 1) / each;
        break;
      }
    }
  }
  for (std::size_t i = 0; i + 1 < op.read_parts.size(); ++i) op.read_parts[i].next_work = &op.read_parts[i + 1];
  offer_inbox(op);
  op.parts_left.store(op.read_parts.size() + op.copied_parts.size() + op.engine_parts.size() + op.pieces_left + 1);  // one for who begins
  return op.watch_deadline();
}

void session::begin_receive(receive_operation& op) noexcept {
  auto& message = *op.message;
  auto problem = or_no_memory([&] { return prepare(op); });
  with_lock([&](endings& ended) {
    if (problem.ok() && message.received) problem = received_before();
    if (problem.ok()) problem = closed_ ? pipe_closed() : message.withdrawn;
    if (problem.ok() && op.pieces_left > 0) problem = lost_;
    if (!problem.ok()) {
      if (!message.received) message.not_received = problem;
      conclude(op, {0, problem}, ended);
      return;
    }
    message.received = true;
    op.known = true;
    not_received_.erase(message.number);
    receiving_now_.emplace(message.number, &op);
    op.retain();  // for its parts
  });
  if (!problem.ok()) return;
  if (op.turn.over()) {
    begin_parts(op);
    return;
  }
  await_turn(op, with_.runtime->feeders());
}

void session::may_begin(receive_operation& op, const status& outcome) noexcept {
  if (!outcome.ok()) with_lock([&](endings& ended) { abandon(op, outcome, ended); });
  begin_parts(op);
}

namespace {

// Small copies are over before the watcher would look. polled: somebody waits for this pipe, and looks after copies too.
void look_after_copies(const receive_operation& op, staging::feeders& copies, bool polled) {
  using clock = std::chrono::steady_clock;
  std::uint64_t bytes = 0;
  for (const auto& each : op.copied_parts) bytes += each.task.bytes;
  const auto until = clock::now() + std::chrono::microseconds(bytes <= small_copy && !polled ? 30 : 0);
  while (op.parts_left.load(std::memory_order_acquire) > 1 && clock::now() < until) {
    if (!copies.pump()) staging::relax();
  }
  copies.attend();
}

}  // namespace

// One that has been stopped begins none.
void session::begin_engine_parts(receive_operation& op) noexcept {
  const std::lock_guard guard(op.engine_lock_);
  for (auto& each : op.engine_parts) {
    io_callback ended = [&op](const io_result& outcome) {
      if (!outcome.ok()) op.fail(outcome.error);
      op.parts_ended(1);
    };
    auto problem = or_no_memory([&]() -> status {
      if (op.stopping.load()) return {errc::cancelled, "cancelled"};
      each.running = penstock::operation(begin(*with_.runtime, each.source, each.what, {.path = with_.runtime->paths().base(true)}, ended));
      return {};
    });
    if (problem.ok()) continue;
    op.fail(problem);
    op.parts_ended(1);
  }
}

void session::begin_parts(receive_operation& op) noexcept {
  bool begins = false;
  with_lock([&](endings& ended) {
    begins = !std::exchange(op.begun, true);
    if (begins) ask(op, ended);
  });
  if (!begins) return;
  auto in_line = op.message->in_line_bytes();
  for (std::size_t i = 0; i < op.targets.size() && !in_line.empty(); ++i) {
    const auto bytes = op.targets[i].length;
    if (bytes > 0 && !op.places[i].on_device()) std::memcpy(op.targets[i].memory, in_line.data(), bytes);
    in_line = in_line.subspan(bytes);
  }
  for (auto& each : op.copied_parts) {
    each.task.context = &each;
    each.task.done = [](staging::copy_task& task, status outcome) {
      auto& of = *static_cast<copied_part*>(task.context)->of;
      if (!outcome.ok()) of.fail(outcome);
      of.parts_ended(1);
    };
    each.via->feeder().submit(each.task);
  }
  if (!op.copied_parts.empty()) look_after_copies(op, with_.runtime->feeders(), connection_->polled());
  begin_engine_parts(op);
  auto& parts = op.read_parts;
  std::uint64_t bytes = 0;
  for (const auto& each : parts) bytes += each.bytes;
  if (!parts.empty() &&
      (bytes <= read_by_caller || !with_.staging->pullers().push(op.list, parts.front(), parts.back(), parts.size()).ok())) {
    for (auto& each : parts) (void)each.run();
  }
  op.parts_ended(1);
}

status session::read(const receive_operation& op, const read_part& part) {
  return with_.door->read_memory(static_cast<pid_t>(op.from.pid), part.address, part.target, part.bytes);
}

// --- the end

// What has not begun will not; what has ends it.
void session::abandon(receive_operation& op, const status& why, endings& ended) {
  op.fail(why);
  abandon_on_lines(op);
  const auto left = op.copying.size() + op.on_lines.size();
  std::uint64_t parts = op.pieces_left - left;
  if (!std::exchange(op.begun, true)) parts = op.parts_left.load();
  op.pieces_left = left;
  op.next_tensor = op.sent_tensors.size();
  op.again.forget(with_.staging->receiving());
  divert(op.message->number);
  op.asked.clear();
  if (parts > 0) ended.of_parts.emplace_back(&op, parts);
}

void session::all_ended(receive_operation& op) noexcept {
  op.copied_parts.clear();  // what they have mapped is kept by the pipe alone
  const auto& facts = op.message->facts;
  const bool from_memory =
      std::any_of(op.by.begin(), op.by.end(), [](const auto* each) { return each != nullptr && !channel::comes_in_pieces(each->how()); });
  auto outcome = or_no_memory([&]() -> status {
    if (auto why = op.stop_reason(); !why.ok()) return why;
    if (auto why = op.error(); !why.ok() || !from_memory) return why;
    // The tensors were still what they were when the last of them had been read.
    std::uint64_t word = 0;
    const auto read =
        with_.door->read_memory(static_cast<pid_t>(op.from.pid), facts.guard_address, reinterpret_cast<std::byte*>(&word), sizeof(word));
    if (read.ok() && word == facts.guard_value) return {};
    if (has_died(read)) return read;
    return {errc::closed, "the sender has taken the message back"};
  });
  with_lock([&](endings& ended) {
    if (has_died(outcome)) outcome = {errc::closed, peer_name_ + " has died"};
    // Where it is known why, that is what is told.
    if (!outcome.ok() && op.stop_reason().ok() && from_memory) {
      if (!op.message->withdrawn.ok()) {
        outcome = op.message->withdrawn;
      } else if (!over().ok()) {
        outcome = over();
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
  std::vector<channel::carried> all;
  for (std::size_t i = 0; i < op.targets.size(); ++i) {
    outcome.bytes_done += op.targets[i].length;
    const auto name = op.by[i] != nullptr ? op.by[i]->name() : channel::in_line_name();
    auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.channel == name; });
    if (found == all.end()) found = all.insert(all.end(), {std::string(name), 0, 0});
    ++found->tensors;
    found->bytes += op.targets[i].length;
  }
  for (const auto& each : all) {
    if (each.bytes == 0) continue;
    count(each.channel, {.name = {}, .received_tensors = each.tensors, .received_bytes = each.bytes});
  }
  if (told) say(frame_kind::taken, op.message->number, channel::encode(all));
  conclude(op, std::move(outcome), ended);
}

void session::stop(receive_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (why.ok() || with_.runtime->forked()) return;
  bool stopped = false;
  with_lock([&](endings& ended) {
    if (!op.known || op.ended) return;
    stopped = true;
    op.retain();
    abandon(op, why, ended);
  });
  if (!stopped) return;
  {
    const std::lock_guard guard(op.engine_lock_);
    for (auto& each : op.engine_parts) each.running.cancel();
  }
  while (with_.staging->pullers().withdraw(op.list) != nullptr) op.parts_ended(1);
  op.release();
}

}  // namespace penstock::pipes
