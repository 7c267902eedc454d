#include "channel/mapping.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/no_memory.hpp"
#include "channel/device_copies.hpp"
#include "channel/stream_turn.hpp"
#include "staging/feeder.hpp"

namespace penstock::channel {

namespace {

constexpr std::size_t most_passed_at_once = connection::most_passed / 2;  // descriptors of frames not yet sent
// The number of allocations assumed to be mapped by the peer; less than the number it keeps.
constexpr std::size_t most_passed = pipe_imports::most / 2;
constexpr std::size_t most_postings = std::size_t{4} * permit::count;
constexpr auto between_looks = std::chrono::milliseconds(1);

}  // namespace

// The local targets.
struct mapping::given_targets final : posting {
  struct given_permit {
    std::uint32_t slot;
    std::uint32_t turn;
  };
  explicit given_targets(mapping& owner) noexcept : posting(owner.of_), of(owner) {}
  [[nodiscard]] bool is_given() const noexcept override { return leave.has_value(); }
  void post(std::uint64_t place) override { of.post(*this, place); }
  bool take_back() override;
  [[nodiscard]] bool meets(std::uint32_t code, std::span<const tensor_facts> tensors) const override;
  void await() override;
  [[nodiscard]] permit permission() const noexcept { return of.owner_.over()->own_permit(leave->slot, leave->turn); }

  mapping& of;
  std::vector<exported_part> exports;
  std::optional<given_permit> leave;  // the permit; the peer may take it, or has taken it
  status outcome_then;                // reported once the peer can no longer write
};

// A part of a tensor that a local device writes into one of the peer's targets.
struct mapping::pushed_part {
  leaving* of = nullptr;
  std::size_t tensor = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  pipe_imports::held target;
  std::uint64_t target_offset = 0;
  staging::copy_task task;
};

class mapping::leaving final : public departure {
 public:
  leaving(mapping& owner, outgoing& of) noexcept : by(owner), message(of) {}
  [[nodiscard]] bool at_rest() const noexcept override { return copying == 0; }

  mapping& by;
  outgoing& message;
  std::vector<exported_part> exports;      // in order
  std::shared_ptr<const push_targets> to;  // null: the message is not pushed
  std::vector<pushed_part> parts;          // the last one to finish releases the mappings
  std::size_t copying = 0;
  status error;
};

class mapping::watch final : public core::timed {
 public:
  watch(std::weak_ptr<carrier_owner> pipe, mapping& of) : pipe_(std::move(pipe)), of_(of) {}
  void end_queued() override {
    if (const auto kept = pipe_.lock(); kept != nullptr) of_.look_at_pushes();
  }

 private:
  ~watch() override = default;
  const std::weak_ptr<carrier_owner> pipe_;
  mapping& of_;
};

mapping::~mapping() {
  if (watch_ != nullptr) watch_->release();
  if (with_.runtime->forked()) return;
  for (auto& each : pinned_permits_) {
    auto* const session = each.exchange(nullptr);
    if (session != nullptr) (void)or_no_memory([&] { return session->unpin(owner_.over()->permit_region().data()); });
  }
}

void mapping::agreed(const agreement& on) {
  if (!on.sends) shares_.store(false);
  if (on.first_between_devices && owner_.over()->has_ring()) may_be_pushed_.store(true);
}

// --- copies from the sender's memory

delivery& mapping::delivery_of(incoming& message) {
  return message.delivery_of<device_copies>(this, [&] { return std::make_unique<device_copies>(with_, *owner_.over(), message); });
}

std::optional<std::string> mapping::take(incoming& message, std::size_t tensor) {
  const auto& from = message.tensors[tensor];
  const auto& to = message.places[tensor];
  if (is_of_host_device(from.device) != to.emulated()) return "one device is emulated and the other is not";
  if (from.parts.empty()) return from.not_shared.empty() ? "the sender does not share its memory" : from.not_shared;
  std::vector<pipe_imports::held> imports;
  for (const auto& each : from.parts) {
    auto opened = imports_->open(to.via->session(), each.handle, each.generation, owner_.peer().pid);
    if (!opened) return std::string(opened.error().message());
    imports.push_back(*std::move(opened));
  }
  auto& of = static_cast<device_copies&>(delivery_of(message));
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < imports.size(); ++i) {
    const auto& part = from.parts[i];
    const auto* const source = imports[i]->base() + part.offset;
    of.add(tensor, at, part.length, source, std::move(imports[i]));
    at += part.length;
  }
  return std::nullopt;
}

// Keeps the message's descriptors until their memory is mapped.
void mapping::has_come(const announcement& facts) {
  for (const auto& tensor : facts.tensors) {
    for (const auto& part : tensor.parts) {
      if (!part.passed) continue;
      auto by = owner_.over()->take_passed();  // invalid: it was lost, for example because this process has reached its descriptor limit
      if (by.get() >= 0) imports_->offer(part.handle, part.generation, std::move(by));
    }
  }
}

// Adds how the peer can map a tensor's memory. Only the first tensor that it cannot map records the reason.
void mapping::share(tensor_facts& told, std::size_t tensor, std::vector<exported_part>& exports, device::session& session,
                    const void* memory, bool& told_why) {
  const auto* const from = static_cast<const std::byte*>(memory);
  auto problem = or_no_memory([&]() -> status {
    for (std::uint64_t at = 0; at < told.length;) {
      auto shared = session.share(from + at);
      if (!shared) return shared.error();
      const auto length = std::min(told.length - at, shared->length);
      if (shared->by_descriptor && owner_.over()->has_ring() && exports.size() < most_passed_at_once) {
        bool has_had = false;
        {
          const std::lock_guard guard(owner_.lock());
          has_had = passed_.count({shared->handle, shared->generation}) > 0;
        }
        auto by = has_had ? sys::owned_descriptor() : session.export_shared(from + at);
        if (!by) return by.error();
        if (!has_had) exports.push_back({tensor, told.parts.size(), *std::move(by)});
      }
      told.parts.push_back({std::move(shared->handle), shared->generation, shared->offset, length, false});
      at += length;
    }
    return {};
  });
  if (problem.ok()) return;
  told.parts.clear();
  std::erase_if(exports, [&](const auto& each) { return each.tensor == tensor; });
  if (!std::exchange(told_why, true)) told.not_shared = problem.message();
}

// Adds how the peer can map all tensors in device memory.
void mapping::share_all(outgoing& message, leaving& of) {
  if (!shares_.load()) return;
  bool told_why = false;
  for (std::size_t i = 0; i < message.places.size(); ++i) {
    if (!message.places[i].on_device()) continue;
    share(message.facts[i], i, of.exports, message.places[i].via->session(), message.message.tensors[i].memory, told_why);
  }
}

void mapping::prepare(outgoing& message, bool in_time) noexcept {
  const auto on_device = [](const auto& each) { return each.on_device(); };
  const auto first = std::find_if(message.places.begin(), message.places.end(), on_device);
  if (first == message.places.end()) return;
  sent_from_[first->emulated() ? 1 : 0].store(first->via);
  or_without_memory(
      [&] {
        auto& of = message.departure_of<leaving>(*this, [&] { return std::make_unique<leaving>(*this, message); });
        if (!in_time || !prepare_push(message)) share_all(message, of);
        return true;
      },
      [] { return false; });
}

// Passes descriptors ahead of the frame that refers to them; that frame holds the returned object until it has been sent. Descriptors that
// cannot be passed now, and those after them, are passed with a later message. The same applies if the peer accepts no more ahead of their
// frames.
std::shared_ptr<void> mapping::pass(std::vector<tensor_facts>& told, std::vector<exported_part>& exports) {
  std::uint32_t passed = 0;
  for (const auto& each : exports) {
    auto& part = told[each.tensor].parts[each.part];
    if (passed_ahead_->load() + passed >= most_passed_at_once || !owner_.over()->pass(each.by.get())) break;
    ++passed;
    part.passed = true;
    if (!passed_.emplace(part.handle, part.generation).second) continue;
    passed_in_order_.emplace_back(part.handle, part.generation);
    if (passed_in_order_.size() <= most_passed) continue;
    passed_.erase(passed_in_order_.front());
    passed_in_order_.pop_front();
  }
  exports.clear();
  passed_ahead_->fetch_add(passed);
  return {nullptr, [ahead = passed_ahead_, passed](void* /*none*/) { ahead->fetch_sub(passed); }};
}

std::shared_ptr<void> mapping::announce(outgoing& message, std::vector<tensor_facts>& told, endings& /*ended*/) {
  auto* const of = message.find_departure<leaving>(*this);
  if (of == nullptr) return nullptr;
  if (!shares_.load()) {  // changed since the message was prepared: the peer would not accept the descriptors
    of->exports.clear();
    for (auto& each : told) each.parts.clear();
  }
  return of->exports.empty() ? nullptr : pass(told, of->exports);
}

// --- local targets

std::unique_ptr<posting> mapping::prepare_posting(const std::vector<incoming_target>& targets) noexcept {
  if (!may_be_pushed_.load() || targets.empty()) return nullptr;
  return or_without_memory(
      [&]() -> std::unique_ptr<posting> {
        auto made = std::make_unique<given_targets>(*this);
        stream_turn turn;
        bool told_why = false;
        for (const auto& each : targets) {
          const auto found = with_.runtime->memory().place_of(each.memory, each.length);
          if (each.length == 0 || !found || !found->on_device()) return nullptr;
          if (!turn.add(*found->via, each.stream).ok() || !turn.over()) return nullptr;
          auto& told = made->targets.emplace_back();
          told.length = each.length;
          told.device = core::name_of(*found);
          share(told, made->targets.size() - 1, made->exports, found->via->session(), each.memory, told_why);
          if (told.parts.empty()) return nullptr;
        }
        return watches_process() ? std::move(made) : nullptr;
      },
      []() -> std::unique_ptr<posting> { return nullptr; });
}

// If the peer's process dies, this process must know when its devices have stopped writing.
bool mapping::watches_process() noexcept {
  std::call_once(process_tried_, [this] {
    auto watched = or_no_memory([this] { return with_.door->watch_process(static_cast<pid_t>(owner_.peer().pid)); });
    if (watched) process_ = *std::move(watched);
  });
  return process_.get() >= 0;
}

void mapping::post(given_targets& of, std::uint64_t place) {
  if (watch_ == nullptr) {
    watch_ = new watch(owner_.handle(), *this);
    being_pushed_.reserve(permit::count);
    free_permits_.reserve(permit::count);
    for (std::uint32_t slot = 0; slot < permit::count; ++slot) free_permits_.push_back(slot);
  }
  if (free_permits_.empty()) return;
  auto left = pass(of.targets, of.exports);
  announcement facts;
  facts.tensors = std::move(of.targets);
  auto body = encode(facts);
  of.targets = std::move(facts.tensors);
  if (body.size() > limits::posted_bytes) return;
  const auto slot = free_permits_.back();
  auto& turn = permit_turns_[slot];
  turn = (turn + 1) % permit::turns;
  owner_.over()->own_permit(slot, turn).give();
  of.leave = {slot, turn};
  free_permits_.pop_back();
  const auto size = body.size();
  owner_.enqueue({{kind_of(posted), slot, place, turn, size}, std::move(body), {}, [kept = std::move(left)](const status& /*why*/) {}});
}

bool mapping::given_targets::take_back() {
  if (!leave) return true;
  if (!permission().take_back()) return false;
  of.free_permits_.push_back(leave->slot);
  leave.reset();
  return true;
}

bool mapping::given_targets::meets(std::uint32_t code, std::span<const tensor_facts> tensors) const {
  const auto is_one_of = [](const auto& one, const auto& other) { return one.length == other.length && !one.in_line; };
  return leave && leave->slot + 1 == code && std::equal(tensors.begin(), tensors.end(), targets.begin(), targets.end(), is_one_of);
}

void mapping::given_targets::await() {
  of.being_pushed_.push_back(this);
  of.pushes_here_.store(of.being_pushed_.size(), std::memory_order_relaxed);
}

void mapping::told_of_push(const frame_head& head, std::span<const std::byte> body, endings& ended) {
  const auto found =
      std::find_if(being_pushed_.begin(), being_pushed_.end(), [&](const auto* each) { return each->message == head.message; });
  if (head.message == 0 || found == being_pushed_.end()) return;  // the device has already reported completion
  has_been_written(**found, status_of(head.code, body), ended);
}

void mapping::has_been_written(given_targets& where, const status& outcome, endings& ended) {
  free_permits_.push_back(where.leave->slot);
  std::erase(being_pushed_, &where);
  pushes_here_.store(being_pushed_.size(), std::memory_order_relaxed);
  owner_.written(where, outcome, ended);
}

// The peer sends nothing more. The shared permit words, or the exit of its process, show when its writes are complete.
void mapping::lost(const status& why, endings& ended) {
  for (auto* where : being_pushed_) {
    if (where->outcome_then.ok()) where->outcome_then = why;
  }
  const bool has_ended = !being_pushed_.empty() && with_.door->has_ended(process_.get());
  for (std::size_t i = being_pushed_.size(); i-- > 0;) {
    auto& where = *being_pushed_[i];
    if (!has_ended && !where.permission().used()) continue;
    being_pushed_.erase(being_pushed_.begin() + static_cast<std::ptrdiff_t>(i));
    owner_.written(where, where.outcome_then, ended);
  }
  pushes_lost_.store(!being_pushed_.empty());
  if (being_pushed_.empty() || std::exchange(watches_, true)) return;
  watch_->set_deadline(deadline_clock::now() + between_looks);
  watches_ = with_.runtime->deadlines().watch(*watch_).ok();  // otherwise a waiting thread checks
}

void mapping::look_at_pushes() noexcept {
  with_lock([&](endings& ended) {
    watches_ = false;
    lost(owner_.why_over(), ended);
  });
}

bool mapping::poll() noexcept {
  if (pushes_lost_.load(std::memory_order_relaxed)) with_lock([&](endings& ended) { lost(owner_.why_over(), ended); });
  return pushes_here_.load(std::memory_order_relaxed) > 0 && ends_of_pushes();
}

// Reports the pushes that the sender's devices have marked as complete.
bool mapping::ends_of_pushes() noexcept {
  const auto is_there = [&](const auto* where) { return where->permission().written(); };
  {
    const std::unique_lock guard(owner_.lock(), std::try_to_lock);
    if (!guard || std::none_of(being_pushed_.begin(), being_pushed_.end(), is_there)) return false;
  }
  with_lock([&](endings& ended) {
    for (;;) {
      const auto found = std::find_if(being_pushed_.begin(), being_pushed_.end(), is_there);
      if (found == being_pushed_.end() || (*found)->message == 0) return;
      has_been_written(**found, {}, ended);
    }
  });
  return true;
}

// --- the peer's targets

status mapping::told_of_targets(const frame_head& head, std::span<const std::byte> body) {
  auto facts = decode_announcement(body);
  if (!facts) return facts.error();
  const auto has_no_parts = [](const auto& each) { return each.parts.empty() || each.in_line; };
  auto& tensors = facts->tensors;
  if (head.code >= permit::count || head.part >= permit::turns || tensors.empty() || !facts->payload_lengths.empty() ||
      std::any_of(tensors.begin(), tensors.end(), has_no_parts) || !owner_.over()->has_ring()) {
    return {errc::io, "the peer sent invalid targets for its tensors"};
  }
  has_come(*facts);
  if (head.message <= announced_so_far_) return {};  // that message has already been announced
  const auto to = std::make_shared<const push_targets>(push_targets{std::move(tensors), head.code, static_cast<std::uint32_t>(head.part)});
  postings_.insert_or_assign(head.message, to);
  if (postings_.size() > most_postings) postings_.erase(std::prev(postings_.end()));
  map_ahead(to);
  return {};
}

// If memory runs out, or the device that will write there is unknown, the message itself maps the targets.
void mapping::map_ahead(const std::shared_ptr<const push_targets>& to) noexcept {
  or_without_memory(
      [&] {
        auto* const from = likely_sender(is_of_host_device(to->tensors.front().device));
        if (from != nullptr) ahead_->add(from->session(), {to, &to->tensors}, owner_.peer().pid);
        return true;
      },
      [] { return false; });
}

// A guess: only the message determines which of several devices it will be. Null: nothing to base a guess on.
staging::link* mapping::likely_sender(bool emulated) noexcept {
  auto* const last = sent_from_[emulated ? 1 : 0].load();
  return last != nullptr ? last : with_.runtime->memory().only_link_in_use(emulated);
}

// Returns the targets posted for the message if those before it are sent in queue order. Null: none.
std::shared_ptr<const mapping::push_targets> mapping::targets_for(const outgoing& message) const {
  if (postings_.empty()) return nullptr;
  const auto found = postings_.find(owner_.place_in_line(message));
  return found == postings_.end() ? nullptr : found->second;
}

// Pins the permit words, once, so that devices themselves mark the completion of their writes. If that fails, the pipe sends a frame
// instead.
void mapping::pin_permits(device::session& session, bool emulated) noexcept {
  const std::size_t kind = emulated ? 1 : 0;
  std::call_once(permits_tried_[kind], [&] {
    const auto region = owner_.over()->permit_region();
    if (or_no_memory([&] { return session.pin(region.data(), region.size(), false); }).ok()) pinned_permits_[kind].store(&session);
  });
}

// Maps the targets if they match the tensors. Call without the lock, because the driver may be slow. Returns true if the message would be
// pushed if sent now, unless the peer revokes its permit.
bool mapping::prepare_push(outgoing& message) noexcept {
  std::shared_ptr<const push_targets> to;
  bool leaves_now = false;
  leaving* of = nullptr;
  {
    const std::lock_guard guard(owner_.lock());
    to = targets_for(message);
    leaves_now = owner_.leaves_now(message);
    of = message.find_departure<leaving>(*this);
  }
  if (of == nullptr || to == nullptr || to->tensors.size() != message.places.size()) return false;
  for (std::size_t i = 0; i < message.places.size(); ++i) {
    const auto& from = message.places[i];
    const bool suits = from.on_device() && from.emulated() == is_of_host_device(to->tensors[i].device);
    if (!suits || to->tensors[i].length != message.message.tensors[i].length) return false;
  }
  const bool reached = or_without_memory(
      [&] {
        for (std::size_t i = 0; i < message.places.size(); ++i) {
          std::uint64_t at = 0;
          for (const auto& part : to->tensors[i].parts) {
            auto opened = imports_->open(message.places[i].via->session(), part.handle, part.generation, owner_.peer().pid);
            if (!opened) return false;
            of->parts.push_back({of, i, at, part.length, *std::move(opened), part.offset, {}});
            at += part.length;
          }
        }
        return true;
      },
      [] { return false; });
  if (reached) {
    pin_permits(message.places.front().via->session(), message.places.front().emulated());
    of->to = std::move(to);
  } else {
    of->parts.clear();
  }
  return reached && leaves_now;
}

std::uint32_t mapping::push(outgoing& message, std::uint64_t place, endings& ended) {
  announced_so_far_ = place;
  const auto met = postings_.extract(place);
  auto* const of = message.find_departure<leaving>(*this);
  if (of == nullptr || of->to == nullptr || met.empty() || met.mapped() != of->to) return 0;
  auto leave = permit_of(*of->to);
  if (!leave.take()) return 0;
  of->copying = of->parts.size();
  for (auto& part : of->parts) {
    const auto& via = *message.places[part.tensor].via;
    const bool tells = of->parts.size() == 1 && pinned_permits_[via.emulated() ? 1 : 0].load() != nullptr;
    part.task.target = const_cast<std::byte*>(part.target->base()) + part.target_offset;
    part.task.source = static_cast<const std::byte*>(message.message.tensors[part.tensor].memory) + part.offset;
    part.task.bytes = part.bytes;
    part.task.between_devices = true;
    part.task.flag = tells ? leave.word() : nullptr;
    part.task.value = leave.value_of_written();
    part.task.context = &part;
    part.task.done = [](staging::copy_task& done, status outcome) {
      auto& self = *static_cast<pushed_part*>(done.context);
      self.of->by.copied(self, outcome);
    };
    via.feeder().submit(part.task);
  }
  ended.copies = true;
  return of->to->slot + 1;
}

void mapping::copied(pushed_part& part, const status& outcome) noexcept {
  auto& of = *part.of;
  with_lock([&](endings& ended) {
    if (!outcome.ok() && of.error.ok()) of.error = outcome;
    if (--of.copying > 0) return;
    permit_of(*of.to).use_up();
    say_why(pushed, of.message.number, of.error);
    if (of.message.has_ended()) {
      owner_.rests(of.message, ended);
    } else {
      owner_.pushed(of.message, *this, of.error, ended);
    }
  });
}

// --- messages from the peer

result<frame_room> mapping::begins(const frame_head& head) {
  const auto kind = own_kind_of_frame(head.kind);
  if (kind == posted) return frame_room{{}, limits::posted_bytes};
  if (kind == pushed) return frame_room{{}, limits::text_bytes};
  return out_of_turn("a frame of an unknown kind");
}

status mapping::arrived(const frame_head& head, std::span<const std::byte> body) {
  status wrong;
  with_lock([&](endings& ended) {
    if (!owner_.hears()) return;
    if (own_kind_of_frame(head.kind) == posted) {
      wrong = told_of_targets(head, body);
    } else {
      told_of_push(head, body, ended);
    }
  });
  return wrong;
}

}  // namespace penstock::channel
