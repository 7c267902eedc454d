// Pipes: tensors that the sender's devices write straight into the targets of a receive that was posted before.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/no_memory.hpp"
#include "pipe/session.hpp"

namespace penstock::pipes {

using channel::frame_kind;
using channel::limits;
using channel::permit;

namespace {

constexpr std::size_t most_postings = std::size_t{4} * permit::count;
constexpr auto between_looks = std::chrono::milliseconds(1);

}  // namespace

// --- the end that receives

std::unique_ptr<posting> session::prepare_posting(const std::vector<incoming_target>& targets) noexcept {
  if (pushes_by_.load() == nullptr || targets.empty()) return nullptr;
  return or_without_memory(
      [&]() -> std::unique_ptr<posting> {
        auto made = std::make_unique<posting>();
        stream_turn turn;
        bool told_why = false;
        for (const auto& each : targets) {
          const auto found = with_.runtime->memory().place_of(each.memory, each.length);
          if (each.length == 0 || !found || !found->on_device()) return nullptr;
          if (!turn.add(*found->via, each.stream).ok() || !turn.over()) return nullptr;
          auto& told = made->targets.emplace_back();
          told.length = each.length;
          told.device = core::name_of(*found);
          share_parts(told, made->targets.size() - 1, made->exports, found->via->session(), each.memory, told_why);
          if (told.parts.empty()) return nullptr;
        }
        return watches_process() ? std::move(made) : nullptr;
      },
      []() -> std::unique_ptr<posting> { return nullptr; });
}

// Of one that dies it has to be known when its devices write no more.
bool session::watches_process() noexcept {
  std::call_once(process_tried_, [this] {
    auto watched = or_no_memory([this] { return with_.door->watch_process(static_cast<pid_t>(peer_.pid)); });
    if (watched) process_ = *std::move(watched);
  });
  return process_.get() >= 0;
}

namespace {

// Looks whether what was pushed by an end that is gone has ended.
class push_watch final : public core::timed {
 public:
  explicit push_watch(std::weak_ptr<session> of) : of_(std::move(of)) {}
  void end_queued() override {
    if (const auto pipe = of_.lock(); pipe != nullptr) pipe->look_at_pushes();
  }

 private:
  ~push_watch() override = default;
  const std::weak_ptr<session> of_;
};

}  // namespace

// Tells the other end where the tensors of the message may go that this operation will get.
void session::post(next_operation& op) {
  if (op.posted == nullptr || !come_.empty()) return;
  if (push_watch_ == nullptr) {
    push_watch_ = new push_watch(weak_from_this());
    being_pushed_.reserve(permit::count);
    free_permits_.reserve(permit::count);
    for (std::uint32_t slot = 0; slot < permit::count; ++slot) free_permits_.push_back(slot);
  }
  if (free_permits_.empty()) return;
  auto left = pass_descriptors(op.posted->targets, op.posted->exports);
  channel::announcement facts;
  facts.tensors = std::move(op.posted->targets);
  auto body = channel::encode(facts);
  op.posted->targets = std::move(facts.tensors);
  if (body.size() > limits::posted_bytes) return;
  const auto slot = free_permits_.back();
  auto& turn = permit_turns_[slot];
  turn = (turn + 1) % permit::turns;
  connection_->own_permit(slot, turn).give();
  op.permit = {slot, turn};
  free_permits_.pop_back();
  const auto size = body.size();
  enqueue({{static_cast<std::uint32_t>(frame_kind::posted), slot, come_so_far_ + waiting_.size(), turn, size},
           std::move(body),
           {},
           [kept = std::move(left)](const status& /*why*/) {}});
}

// False: the other end is writing there.
bool session::take_back(next_operation& op) {
  if (!op.permit) return true;
  if (!permit_of(op).take_back()) return false;
  free_permits_.push_back(op.permit->slot);
  op.permit.reset();
  return true;
}

// Whoever waits behind this one would get another message than the other end was told. False: for one of them, and for this one, the
// message is on its way.
bool session::take_back_from(const next_operation& op) {
  bool all = true;
  for (auto at = std::find(waiting_.begin(), waiting_.end(), &op); at != waiting_.end(); ++at) all = take_back(**at) && all;
  return all && std::find(being_pushed_.begin(), being_pushed_.end(), &op) == being_pushed_.end();
}

status session::meets_posting(const channel::frame_head& head, arrived_message& message) {
  auto* const op = come_.empty() && !waiting_.empty() ? waiting_.front() : nullptr;
  const bool could = op != nullptr && op->permit;
  if (head.code == 0) {
    if (!could || take_back(*op)) return {};
    return {errc::io, "the other end took leave to push a message, and did not"};
  }
  const auto is_one_of = [](const auto& one, const auto& other) { return one.length == other.length && !one.in_line; };
  const auto& come = message.facts.tensors;
  if (!could || op->permit->slot + 1 != head.code ||
      !std::equal(come.begin(), come.end(), op->posted->targets.begin(), op->posted->targets.end(), is_one_of)) {
    return {errc::io, "the other end pushed a message that it had no leave for"};
  }
  message.pushed = true;
  message.received = true;
  return {};
}

status session::pushed(const channel::frame_head& head, endings& ended) {
  const auto found = std::find_if(being_pushed_.begin(), being_pushed_.end(),
                                  [&](const auto* each) { return each->come != nullptr && each->come->number == head.message; });
  if (found == being_pushed_.end()) return {};  // its device has told of it
  push_ended(**found, channel::status_of(head.code, body_), ended);
  return {};
}

void session::push_ended(next_operation& op, status outcome, endings& ended) {
  free_permits_.push_back(op.permit->slot);
  std::erase(being_pushed_, &op);
  pushes_here_.store(being_pushed_.size(), std::memory_order_relaxed);
  if (!outcome.ok()) {
    conclude(op, {0, std::move(outcome)}, ended);
    return;
  }
  const auto& by = *pushes_by_.load();
  note_pushed(by, op);
  std::uint64_t bytes = 0;
  for (const auto& each : op.posted->targets) bytes += each.length;
  const auto tensors = op.posted->targets.size();
  count(by.name(), {.name = {}, .received_tensors = tensors, .received_bytes = bytes, .pushed_tensors = tensors});
  conclude(op, {bytes, {}}, ended);
}

// The other end will not tell any more: the words that both see do, or its end.
void session::end_pushes(const status& why, endings& ended) {
  for (auto* op : being_pushed_) {
    if (op->outcome_then.ok()) op->outcome_then = {0, why};
  }
  const bool has_ended = !being_pushed_.empty() && with_.door->has_ended(process_.get());
  for (std::size_t i = being_pushed_.size(); i-- > 0;) {
    auto& op = *being_pushed_[i];
    if (!has_ended && !permit_of(op).used()) continue;
    being_pushed_.erase(being_pushed_.begin() + static_cast<std::ptrdiff_t>(i));
    conclude(op, std::move(op.outcome_then), ended);
  }
  pushes_lost_.store(!being_pushed_.empty());
  if (being_pushed_.empty() || std::exchange(watches_pushes_, true)) return;
  push_watch_->set_deadline(deadline_clock::now() + between_looks);
  watches_pushes_ = with_.runtime->deadlines().watch(*push_watch_).ok();  // else who waits looks
}

void session::look_at_pushes() noexcept {
  with_lock([&](endings& ended) {
    watches_pushes_ = false;
    end_pushes(over(), ended);
  });
}

bool session::poll() noexcept {
  if (pushes_lost_.load(std::memory_order_relaxed)) with_lock([&](endings& ended) { end_pushes(over(), ended); });
  return connection_->poll() || (pushes_here_.load(std::memory_order_relaxed) > 0 && ends_of_pushes());
}

// Those of which the sender's devices tell.
bool session::ends_of_pushes() noexcept {
  const auto is_there = [&](const auto* op) { return permit_of(*op).written(); };
  {
    const std::unique_lock guard(lock_, std::try_to_lock);
    if (!guard || std::none_of(being_pushed_.begin(), being_pushed_.end(), is_there)) return false;
  }
  with_lock([&](endings& ended) {
    for (;;) {
      const auto found = std::find_if(being_pushed_.begin(), being_pushed_.end(), is_there);
      if (found == being_pushed_.end() || (*found)->come == nullptr) return;
      push_ended(**found, {}, ended);
    }
  });
  return true;
}

// --- the end that sends

status session::posted(const channel::frame_head& head) {
  auto facts = channel::decode_announcement(body_);
  if (!facts) return facts.error();
  const auto has_no_parts = [](const auto& each) { return each.parts.empty() || each.in_line; };
  auto& tensors = facts->tensors;
  if (head.code >= permit::count || head.part >= permit::turns || tensors.empty() || !facts->payload_lengths.empty() ||
      std::any_of(tensors.begin(), tensors.end(), has_no_parts) || !connection_->has_ring()) {
    return {errc::io, "the other end told where its tensors go in a way that cannot be"};
  }
  offer_descriptors(*facts);
  if (head.message <= announced_so_far_) return {};  // which is on its way already
  postings_.insert_or_assign(head.message, std::make_shared<const push_targets>(
                                               push_targets{std::move(tensors), head.code, static_cast<std::uint32_t>(head.part)}));
  if (postings_.size() > most_postings) postings_.erase(std::prev(postings_.end()));
  return {};
}

// Which the message will meet if those before it leave as they are queued now. Null: none.
std::shared_ptr<const push_targets> session::targets_for(const send_operation& op) const {
  if (postings_.empty()) return nullptr;
  const auto ahead = std::find(queued_.begin(), queued_.end(), &op) - queued_.begin();
  const auto found = postings_.find(announced_so_far_ + static_cast<std::uint64_t>(ahead) + 1);
  return found == postings_.end() ? nullptr : found->second;
}

// So that devices tell by themselves that they have written. Once; where it cannot be, the pipe tells.
void session::pin_permits(device::session& session, bool emulated) noexcept {
  const std::size_t kind = emulated ? 1 : 0;
  std::call_once(permits_tried_[kind], [&] {
    const auto region = connection_->permit_region();
    if (or_no_memory([&] { return session.pin(region.data(), region.size(), false); }).ok()) pinned_permits_[kind].store(&session);
  });
}

void session::unpin_permits() noexcept {
  for (auto& each : pinned_permits_) {
    auto* const session = each.exchange(nullptr);
    if (session != nullptr) (void)or_no_memory([&] { return session->unpin(connection_->permit_region().data()); });
  }
}

// Maps the targets, where they are such as the tensors. Without the lock: the driver may take its time. True: it will be pushed if it
// leaves now and the other end does not take its leave back.
bool session::prepare_push(send_operation& op) noexcept {
  std::shared_ptr<const push_targets> to;
  bool leaves_now = false;
  {
    const std::lock_guard guard(lock_);
    to = targets_for(op);
    leaves_now = ready_ && queued_.empty() && may_announce(op);
  }
  if (to == nullptr || to->tensors.size() != op.places.size()) return false;
  const auto maps = [](const channel::channel* each) { return each->how() == channel::carriage::map; };
  const auto by = std::find_if(with_.channels.begin(), with_.channels.end(), maps);
  if (by == with_.channels.end()) return false;
  for (std::size_t i = 0; i < op.places.size(); ++i) {
    const auto& from = op.places[i];
    const bool suits = from.on_device() && from.emulated() == is_of_host_device(to->tensors[i].device);
    if (!suits || to->tensors[i].length != op.message.tensors[i].length) return false;
  }
  const bool reached = or_without_memory(
      [&] {
        for (std::size_t i = 0; i < op.places.size(); ++i) {
          std::uint64_t at = 0;
          for (const auto& part : to->tensors[i].parts) {
            auto opened = imports_.open(op.places[i].via->session(), part.handle, part.generation, peer_.pid);
            if (!opened) return false;
            auto& piece = op.to_push.emplace_back();
            piece.of = &op;
            piece.tensor = i;
            piece.offset = at;
            piece.bytes = part.length;
            auto* const target = const_cast<std::byte*>((*opened)->base()) + part.offset;
            piece.room = staging::landing::lease(*std::move(opened), target);
            at += part.length;
          }
        }
        return true;
      },
      [] { return false; });
  if (reached) {
    pin_permits(op.places.front().via->session(), op.places.front().emulated());
    op.pushes_to = std::move(to);
    op.pushed_by = *by;
  } else {
    op.to_push.clear();
  }
  return reached && leaves_now;
}

// index: which message it is since the beginning. False: it is not pushed.
bool session::begin_push(send_operation& op, std::uint64_t index) {
  const auto met = postings_.extract(index);
  if (op.pushes_to == nullptr || met.empty() || met.mapped() != op.pushes_to) return false;
  auto leave = permit_of(op);
  if (!leave.take()) return false;
  op.pushing = true;
  op.copying = std::move(op.to_push);
  for (auto& piece : op.copying) {
    const auto& via = *op.places[piece.tensor].via;
    const auto* const source = static_cast<const std::byte*>(op.message.tensors[piece.tensor].memory) + piece.offset;
    const bool tells = op.copying.size() == 1 && pinned_permits_[via.emulated() ? 1 : 0].load() != nullptr;
    piece.copy(via, piece.room.get(), source, false, tells ? leave.word() : nullptr, leave.value_of_written());
  }
  pushes_ = true;
  return true;
}

// All of its copies have ended.
void session::push_ended(send_operation& op, endings& ended) {
  permit_of(op).use_up();
  say(frame_kind::pushed, op.number, op.push_error);
  if (op.ended) {
    ended.told.emplace_back(&op, std::move(op.outcome_then));
    return;
  }
  if (op.push_error.ok()) {
    const auto tensors = op.places.size();
    count(op.pushed_by->name(), {.name = {}, .sent_tensors = tensors, .sent_bytes = op.tensor_bytes, .pushed_tensors = tensors});
  }
  end(op, {op.push_error.ok() ? op.tensor_bytes : 0, op.push_error}, ended);
}

}  // namespace penstock::pipes
