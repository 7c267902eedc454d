// The further connections of a tcp pipe, over which large tensors go beside its own one: each is read and written by a thread of several,
// so that neither one thread that copies nor one congestion window is what they wait for. They are made when the first large tensor is on
// its way, by the end that has connected, with tokens that the other end has told it over the pipe; until they are there, or where none can
// be made, all goes over the pipe's own connection. Thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "channel/connection.hpp"
#include "channel/reactors.hpp"
#include "channel/stripe_door.hpp"
#include "channel/wire.hpp"
#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::channel {

// Who uses them, as they see it. Any thread, several at once.
class stripe_owner {
 public:
  // A piece comes over one of them. See frame_user.
  virtual result<std::span<std::byte>> piece_begins(const frame_head& head) = 0;
  virtual status piece_arrived(const frame_head& head) = 0;
  // One that pieces were sent over has ended; what was on its way there will not arrive. closed: the other end, or what lies between, has
  // ended it. Anything else: the other end has said what it must not.
  virtual void stripe_lost(const status& why) noexcept = 0;
  // To be said over the pipe's own connection: by who has connected, that it would like some, or why (code, body) it can make none; by the
  // other end a stripe_offer, or why there is none.
  virtual void say_of_stripes(std::uint32_t code, std::vector<std::byte> body) = 0;

 protected:
  ~stripe_owner() = default;
};

class pipe_stripes final : public stripe_host, public std::enable_shared_from_this<pipe_stripes> {
 public:
  static constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;  // of a tensor that is worth them, and of a piece that goes there

  // most: connections of the pipe, with its own, which is own. close_within: as of pipe_options.
  pipe_stripes(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, std::shared_ptr<reactors> more,
               std::shared_ptr<connection> own, bool connects, unsigned most, std::chrono::milliseconds close_within,
               std::weak_ptr<stripe_owner> owner);

  // How many the other end would have. Before anything else.
  void agree(std::uint32_t most_of_other) noexcept { agreed_.store(std::clamp(most_of_other, 1U, most_)); }
  // The ends have agreed on the channel.
  void allow() noexcept { allowed_.store(true); }
  [[nodiscard]] unsigned agreed() const noexcept { return agreed_.load(); }
  // That there are, with the pipe's own.
  [[nodiscard]] unsigned count() const noexcept { return static_cast<unsigned>(count_.load()); }
  // Both ends cut a tensor in the same way: into as many pieces as there are connections where it is not longer.
  [[nodiscard]] std::uint64_t piece_bytes(std::uint64_t length) const noexcept;
  // Why pieces have nothing but the pipe's own connection; empty: they have more, or may have.
  [[nodiscard]] std::string refusal() const;

  // A large tensor is on its way: go_on() makes them, once.
  void want() noexcept { wanted_.store(true, std::memory_order_relaxed); }
  // Sends what is queued. Not while a lock is held.
  void go_on() noexcept;
  // What the other end says of them.
  status told(const frame_head& head, std::span<const std::byte> body);
  // Over the one that has least to do. kept: goes once it has left.
  void enqueue(outgoing_frame frame, std::shared_ptr<std::byte> kept);
  void withdraw(std::uint64_t message);
  void divert(std::uint64_t message);
  void close() noexcept;

  void came(std::size_t which, sys::owned_descriptor over, std::unique_ptr<sys::tls_stream> secure) noexcept override;
  void door_failed(const status& why) noexcept override;

 private:
  class stripe;
  struct lane {
    std::shared_ptr<connection> over;
    std::shared_ptr<stripe> user;                       // null: the pipe's own
    std::shared_ptr<std::atomic<std::uint64_t>> bytes;  // queued there
    std::atomic<bool> fresh{false};                     // something has been queued since it was last flushed
  };

  void begin();
  status open_door();
  void make_all(const stripe_offer& offer);
  status make_one(std::size_t which, const sys::socket_address& to, const sys::digest& token);
  status start(std::size_t which, sys::owned_descriptor over, std::unique_ptr<sys::tls_stream> secure, const sys::digest* token);
  bool add_lane(const std::shared_ptr<stripe>& by);
  void joined(stripe& by);
  void lost(stripe& by, const status& why) noexcept;
  void refuse(const status& why) noexcept;
  void settle() noexcept;
  void tell(const status& why) noexcept;

  const std::shared_ptr<sys::peer> door_;
  const std::shared_ptr<reactor> reactor_;
  const std::shared_ptr<reactors> more_;
  const bool connects_;
  const std::uint32_t most_;
  const std::chrono::milliseconds close_within_;
  const std::weak_ptr<stripe_owner> owner_;
  std::atomic<std::uint32_t> agreed_{1};
  std::atomic<bool> allowed_{false};
  std::atomic<bool> wanted_{false};
  std::atomic<bool> begun_{false};
  // Those before count_ do not change.
  std::array<lane, limits::connections> lanes_;
  std::atomic<std::size_t> count_{1};

  mutable std::mutex lock_;  // guards what follows, and adding a lane
  bool closed_ = false;
  bool offered_ = false;  // the other end has told tokens
  std::shared_ptr<stripe_door> listening_;
  std::vector<std::shared_ptr<stripe>> joining_;  // until the other end has answered
  bool making_ = false;                           // more of them
  status refused_;                                // why there are not as many as there should be
  bool told_ = false;                             // the other end knows
};

}  // namespace penstock::channel
