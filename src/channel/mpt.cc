#include <algorithm>
#include <utility>

#include "channel/channel.hpp"
#include "channel/pieces.hpp"
#include "channel/stripes.hpp"

namespace penstock::channel {

namespace {

// Pieces that arrive over any of several connections: the pipe's own and further ones.
class several final : public pieces, public stripe_owner {
 public:
  several(const channel& of, const tools& with, carrier_owner& owner)
      : pieces(of, with, owner),
        stripes_(std::make_shared<pipe_stripes>(with.door, with.reactor, with.more_reactors, owner.over(), owner.has_connected(),
                                                with.connections, with.close_within,
                                                std::shared_ptr<stripe_owner>(owner.handle().lock(), this))) {}

  void agreed(const agreement& on) override {
    if (!on.sends || !on.receives) return;
    stripes_->agree(owner_.peer().connections);
    stripes_->allow();
  }
  [[nodiscard]] std::string refusal() const override { return stripes_->refusal(); }
  [[nodiscard]] unsigned connections() const noexcept override { return stripes_->count(); }

  std::optional<std::string> take(incoming& message, std::size_t tensor) override {
    if (auto none = stripes_->refusal(); !none.empty()) return none;
    return pieces::take(message, tensor);
  }
  std::shared_ptr<void> announce(outgoing& message, std::vector<tensor_facts>& /*told*/, endings& ended) override {
    const auto large = [](const auto& each) { return each.length >= pipe_stripes::least_bytes; };
    if (std::any_of(message.facts.begin(), message.facts.end(), large)) {
      stripes_->want();
      goes_on(ended);
    }
    return nullptr;
  }
  void withdraw(outgoing& message) override {
    stripes_->withdraw(message.number);
    pieces::withdraw(message);
  }

  result<frame_room> begins(const frame_head& head) override {
    const auto kind = own_kind_of_frame(head.kind);
    if (kind == connections_told || kind == one_lost) return frame_room{{}, limits::text_bytes};
    return pieces::begins(head);
  }
  status arrived(const frame_head& head, std::span<const std::byte> body) override {
    const auto kind = own_kind_of_frame(head.kind);
    if (kind == connections_told) return told(head, body);
    if (kind != one_lost) return pieces::arrived(head, body);
    const std::lock_guard guard(owner_.lock());
    if (owner_.hears() && lost_first_.ok()) lost_first_ = status_of(head.code, body);
    return {};
  }

  void go_on() noexcept override { stripes_->go_on(); }
  [[nodiscard]] status lost_first() const override { return lost_first_; }
  void close() noexcept override {
    stripes_->close();
    pieces::close();
  }

  // --- for the further connections, on the threads that read them
  result<std::span<std::byte>> piece_begins(const frame_head& head) override {
    const std::lock_guard guard(owner_.lock());
    if (!owner_.hears()) return std::span<std::byte>();
    if (head.length == 0 || head.length > limits::piece_bytes) return out_of_turn("a piece of a tensor");
    return room_for(head);
  }
  status piece_arrived(const frame_head& head) override {
    with_lock([&](endings& ended) {
      if (owner_.hears()) (void)come(head, ended);
    });
    return {};
  }
  // A pipe that has lost a connection cannot continue. What the peer sent earlier over the pipe's own connection is still valid, so the
  // pipe stops sending and ends when that connection ends too. If the peer broke the protocol, the pipe ends at once.
  void stripe_lost(const status& why) noexcept override {
    const bool gone = why.code() == errc::closed;
    with_lock([&](endings& ended) {
      if (!owner_.why_over().ok()) return;
      if (lost_first_.ok()) lost_first_ = why;
      say_why(one_lost, 0, why);
      if (!gone) owner_.cut_off(why, ended);
    });
    if (gone) {
      owner_.over()->end_sending();
    } else {
      owner_.over()->close(with_.close_within);
      stripes_->close();
    }
  }
  void say_of_stripes(std::uint32_t code, std::vector<std::byte> body) override {
    say(connections_told, 0, std::move(body), 0, code);
    owner_.over()->flush();
  }

 protected:
  [[nodiscard]] std::uint64_t piece_bytes(std::uint64_t length) const noexcept override { return stripes_->piece_bytes(length); }
  // One piece per connection is held in reserve.
  [[nodiscard]] std::size_t most_pieces() const noexcept override {
    return std::max<std::size_t>(usual_pieces, std::size_t{2} * stripes_->agreed());
  }
  [[nodiscard]] bool has_slots() const noexcept override { return false; }
  void send(outgoing_frame frame, staging::landing::lease room, endings& ended) override {
    stripes_->enqueue(std::move(frame), std::move(room));
    goes_on(ended);
  }
  void divert(std::uint64_t message) override {
    pieces::divert(message);
    stripes_->divert(message);
  }

 private:
  enum further_kind : std::uint8_t {
    connections_told = first_further,  // see stripe_owner::say_of_stripes
    one_lost,                          // code, body: which connection, and why
  };
  status told(const frame_head& head, std::span<const std::byte> body) {
    {
      const std::lock_guard guard(owner_.lock());
      if (!owner_.hears()) return {};
    }
    return stripes_->told(head, body);
  }
  void goes_on(endings& ended) {
    if (std::find(ended.go_on.begin(), ended.go_on.end(), this) == ended.go_on.end()) ended.go_on.push_back(this);
  }

  const std::shared_ptr<pipe_stripes> stripes_;
  status lost_first_;  // guarded by the pipe's lock
};

// With one connection, one thread at each end copies and there is one congestion window; several connections use more of both.
class mpt_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "mpt"; }
  [[nodiscard]] bool serves(bool /*from_device*/, bool /*to_device*/) const noexcept override { return true; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& from, const identity& here, const means& /*by*/) const override {
    if (here.connections == 0) return "a pipe within one host needs no further connections";
    if (here.connections == 1) return "this process is limited to one connection";
    if (from.connections < 2) return "the peer is limited to one connection";
    return std::nullopt;
  }
  [[nodiscard]] std::unique_ptr<carrier> make(const tools& with, carrier_owner& owner) const override {
    if (owner.is_local() || with.connections < 2) return nullptr;
    return std::make_unique<several>(*this, with, owner);
  }
};

}  // namespace

const channel& mpt() {
  static const mpt_channel the;
  return the;
}

}  // namespace penstock::channel
