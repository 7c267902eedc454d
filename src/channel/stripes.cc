#include "channel/stripes.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"

namespace penstock::channel {

namespace {

constexpr std::uint64_t piece_unit = std::uint64_t{64} << 10;

outgoing_frame frame_of(stripe_frame kind, std::vector<std::byte> body) {
  const auto size = body.size();
  return {{static_cast<std::uint32_t>(kind), 0, 0, 0, size}, std::move(body), {}, {}};
}

}  // namespace

// One further connection, and its reader.
class pipe_stripes::stripe final : public frame_user, public std::enable_shared_from_this<stripe> {
 public:
  stripe(std::weak_ptr<pipe_stripes> of, std::size_t number, unsigned all, bool awaits_answer)
      : of_(std::move(of)), name_(fmt::format("connection {} of {}", number, all)), awaited_(awaits_answer) {}

  result<std::span<std::byte>> begins(const frame_head& head) override {
    const auto kind = static_cast<stripe_frame>(head.kind);
    const bool empty = head.length == 0;
    if (kind == stripe_frame::piece && !awaited_) {
      const auto owner = owner_of_all();
      return owner == nullptr ? std::span<std::byte>() : owner->piece_begins(head);
    }
    if ((kind == stripe_frame::joins && awaited_ && empty) || (kind == stripe_frame::farewell && !awaited_ && empty)) {
      return std::span<std::byte>();
    }
    return out_of_turn(fmt::format("a frame with kind {}", head.kind));
  }

  status arrived(const frame_head& head) override {
    const auto kind = static_cast<stripe_frame>(head.kind);
    if (kind == stripe_frame::farewell) parted_ = true;
    if (kind == stripe_frame::joins) {
      if (const auto all = of_.lock(); all != nullptr) all->joined(*this);
    }
    const auto owner = kind == stripe_frame::piece ? owner_of_all() : nullptr;
    return owner == nullptr ? status() : owner->piece_arrived(head);
  }

  void lost(const status& why) noexcept override {
    if (const auto all = of_.lock(); all != nullptr && !parted_) all->lost(*this, why);
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  std::shared_ptr<connection> over;  // constant once it has started
  bool listed = false;               // it carries pieces; guarded by the lock of pipe_stripes

 private:
  [[nodiscard]] std::shared_ptr<stripe_owner> owner_of_all() const {
    const auto all = of_.lock();
    return all == nullptr ? nullptr : all->owner_.lock();
  }

  const std::weak_ptr<pipe_stripes> of_;
  const std::string name_;
  friend class pipe_stripes;
  std::atomic<bool> awaited_;  // waits for the peer's reply, which must come first
  std::atomic<bool> parted_{false};
};

pipe_stripes::pipe_stripes(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, std::shared_ptr<reactors> more,
                           std::shared_ptr<connection> own, bool connects, unsigned most, std::chrono::milliseconds close_within,
                           std::weak_ptr<stripe_owner> owner)
    : door_(std::move(door)),
      reactor_(std::move(with)),
      more_(std::move(more)),
      connects_(connects),
      most_(most),
      close_within_(close_within),
      owner_(std::move(owner)) {
  lanes_[0].over = std::move(own);
  lanes_[0].bytes = std::make_shared<std::atomic<std::uint64_t>>(0);
}

std::uint64_t pipe_stripes::piece_bytes(std::uint64_t length) const noexcept {
  const std::uint64_t share = length / agreed() + piece_unit;
  return std::clamp(share - share % piece_unit, least_bytes, limits::piece_bytes);
}

std::string pipe_stripes::refusal() const {
  const std::lock_guard guard(lock_);
  if (refused_.ok() || count_.load() > 1) return {};
  return fmt::format("no further connections could be made: {}", refused_.message());
}

// --- making connections

void pipe_stripes::go_on() noexcept {
  if (wanted_.load(std::memory_order_relaxed) && !begun_.load(std::memory_order_relaxed)) begin();
  const auto count = count_.load(std::memory_order_acquire);
  for (std::size_t i = 1; i < count; ++i) {
    if (lanes_[i].fresh.load(std::memory_order_relaxed) && lanes_[i].fresh.exchange(false)) lanes_[i].over->flush_elsewhere();
  }
}

void pipe_stripes::begin() {
  if (!allowed_.load() || begun_.exchange(true)) return;
  const auto problem = or_no_memory([&]() -> status {
    const auto owner = owner_.lock();
    if (owner == nullptr) return {};
    if (!connects_) return open_door();
    owner->say_of_stripes(0, {});
    return {};
  });
  if (problem.ok()) return;
  refuse(problem);
  tell(problem);
}

status pipe_stripes::open_door() {
  auto at = lanes_[0].over->address_of(false);
  if (!at) return at.error();
  at->port = 0;
  auto opened = stripe_door::open(door_, reactor_, lanes_[0].over, *at, agreed() - 1, weak_from_this());
  if (!opened) return opened.error();
  bool late = false;
  {
    const std::lock_guard guard(lock_);
    late = closed_;
    if (!late) listening_ = *opened;
  }
  if (late) (*opened)->close();
  if (const auto owner = owner_.lock(); owner != nullptr && !late) owner->say_of_stripes(0, encode((*opened)->offer()));
  return {};
}

status pipe_stripes::told(const frame_head& head, std::span<const std::byte> body) {
  if (!allowed_.load()) return out_of_turn("a message about further connections");
  if (head.code != 0) {
    refuse(status_of(head.code, body));
    return {};
  }
  if (!connects_) {
    if (!body.empty()) return out_of_turn("an offer of further connections");
    begin();
    return {};
  }
  const auto offer = decode_stripe_offer(body);
  if (!offer) return offer.error();
  {
    const std::lock_guard guard(lock_);
    if (std::exchange(offered_, true) || offer->tokens.size() >= agreed()) return out_of_turn("an offer of further connections");
    making_ = true;
  }
  begun_.store(true);
  make_all(*offer);
  return {};
}

// Connections that cannot be made do not affect the others, or the pipe.
void pipe_stripes::make_all(const stripe_offer& offer) {
  auto to = lanes_[0].over->address_of(true);
  if (to) to->port = offer.port;
  for (std::size_t i = 0; i < offer.tokens.size(); ++i) {
    const auto problem = to ? make_one(i, *to, offer.tokens[i]) : to.error();
    if (!problem.ok()) refuse(problem);
  }
  {
    const std::lock_guard guard(lock_);
    making_ = false;
  }
  settle();
}

status pipe_stripes::make_one(std::size_t which, const sys::socket_address& to, const sys::digest& token) {
  auto socket = door_->connect(to);
  if (!socket) return socket.error();
  std::unique_ptr<sys::tls_stream> secure;
  if (const auto* const own = lanes_[0].over->secure(); own != nullptr) {
    auto another = own->sibling();
    if (!another) return another.error();
    secure = *std::move(another);
  }
  return start(which, *std::move(socket), std::move(secure), &token);
}

// token: set at the connecting end; the peer replies to it.
status pipe_stripes::start(std::size_t which, sys::owned_descriptor over, std::unique_ptr<sys::tls_stream> secure,
                           const sys::digest* token) {
  const auto reads = more_->next();
  if (!reads) return reads.error();
  const bool connecting = token != nullptr;
  const auto made = std::make_shared<stripe>(weak_from_this(), which + 2, agreed(), connecting);
  made->over = connection::make(door_, *reads, std::move(over), connecting, std::move(secure));
  (void)made->over->enqueue(
      frame_of(stripe_frame::joins, connecting ? std::vector<std::byte>(token->begin(), token->end()) : std::vector<std::byte>()));
  {
    const std::lock_guard guard(lock_);
    if (closed_) return {};
    joining_.push_back(made);
    if (!connecting && !add_lane(made)) return out_of_turn("more connections than allowed");
  }
  if (auto problem = made->over->start(made); !problem.ok()) {
    lost(*made, problem);
    return {};
  }
  made->over->flush();
  return {};
}

// Call with the lock held.
bool pipe_stripes::add_lane(const std::shared_ptr<stripe>& by) {
  const auto index = count_.load();
  if (index == lanes_.size()) return false;
  auto& added = lanes_[index];
  added.bytes = std::make_shared<std::atomic<std::uint64_t>>(0);
  added.over = by->over;
  added.user = by;
  std::erase(joining_, by);
  by->listed = true;
  count_.store(index + 1, std::memory_order_release);
  return true;
}

void pipe_stripes::came(std::size_t which, sys::owned_descriptor over, std::unique_ptr<sys::tls_stream> secure) noexcept {
  const auto problem = or_no_memory([&] { return start(which, std::move(over), std::move(secure), nullptr); });
  if (!problem.ok()) door_failed(problem);
}

void pipe_stripes::door_failed(const status& why) noexcept {
  refuse(why);
  tell(why);
}

void pipe_stripes::joined(stripe& by) {
  by.awaited_.store(false);
  {
    const std::lock_guard guard(lock_);
    if (!closed_) (void)add_lane(by.shared_from_this());
  }
  settle();
}

// --- losing connections

void pipe_stripes::lost(stripe& by, const status& why) noexcept {
  bool listed = false;
  {
    const std::lock_guard guard(lock_);
    if (closed_) return;
    listed = by.listed;
    std::erase_if(joining_, [&](const auto& each) { return each.get() == &by; });
  }
  const auto named = or_no_memory([&]() -> status { return {why.code(), fmt::format("{}: {}", by.name(), why.message())}; });
  if (!listed) {
    refuse(named);
    settle();
  } else if (const auto owner = owner_.lock(); owner != nullptr) {
    owner->stripe_lost(named);
  }
}

// No more connections will be made, or an expected one cannot be.
void pipe_stripes::refuse(const status& why) noexcept {
  std::shared_ptr<stripe_door> door;
  {
    const std::lock_guard guard(lock_);
    if (refused_.ok()) refused_ = why;
    door.swap(listening_);
  }
  if (door != nullptr) door->close();
}

// If the connecting end could not make all the connections that the peer expects, it sends the peer the actual number.
void pipe_stripes::settle() noexcept {
  status why;
  {
    const std::lock_guard guard(lock_);
    if (closed_ || making_ || !joining_.empty() || refused_.ok() || std::exchange(told_, true)) return;
    why = refused_;
  }
  tell(why);
}

void pipe_stripes::tell(const status& why) noexcept {
  const auto owner = owner_.lock();
  if (owner == nullptr) return;
  or_without_memory([&] { return owner->say_of_stripes(code_of(why), encode_text(why.message())), true; }, [] { return false; });
}

// --- using connections

void pipe_stripes::enqueue(outgoing_frame frame, std::shared_ptr<std::byte> kept) {
  const auto size = frame.lent.size();
  const auto count = size < least_bytes ? 1 : count_.load(std::memory_order_acquire);
  std::size_t best = 0;
  for (std::size_t i = 1; i < count; ++i) {
    if (lanes_[i].bytes->load() <= lanes_[best].bytes->load()) best = i;
  }
  auto& chosen = lanes_[best];
  chosen.bytes->fetch_add(size);
  // Subtracted when `written` is destroyed: the frame has been sent, or never will be.
  std::shared_ptr<void> counted(nullptr, [bytes = chosen.bytes, size](void* /*none*/) { bytes->fetch_sub(size); });
  if (best > 0) frame.head.kind = static_cast<std::uint32_t>(stripe_frame::piece);
  frame.written = [kept = std::move(kept), counted = std::move(counted)](const status& /*why*/) {};
  (void)chosen.over->enqueue(std::move(frame));  // on failure the pipe closes
  if (best > 0) chosen.fresh.store(true);
}

void pipe_stripes::withdraw(std::uint64_t message) {
  const auto count = count_.load(std::memory_order_acquire);
  for (std::size_t i = 1; i < count; ++i) lanes_[i].over->withdraw(message);
}

void pipe_stripes::divert(std::uint64_t message) {
  const auto count = count_.load(std::memory_order_acquire);
  for (std::size_t i = 1; i < count; ++i) lanes_[i].over->divert(message);
}

void pipe_stripes::close() noexcept {
  std::shared_ptr<stripe_door> door;
  std::vector<std::shared_ptr<stripe>> joining;
  {
    const std::lock_guard guard(lock_);
    if (std::exchange(closed_, true)) return;
    door.swap(listening_);
    joining.swap(joining_);
  }
  if (door != nullptr) door->close();
  for (const auto& each : joining) each->over->close(close_within_);
  const auto count = count_.load(std::memory_order_acquire);
  for (std::size_t i = 1; i < count; ++i) {
    or_without_memory([&] { return lanes_[i].over->enqueue(frame_of(stripe_frame::farewell, {})); }, [] { return false; });
    lanes_[i].over->close(close_within_);
  }
}

}  // namespace penstock::channel
