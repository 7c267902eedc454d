// The further connections of a tcp pipe, which transfer large tensors alongside the pipe's own connection. Several threads read and write
// them, so that neither one copying thread nor one congestion window is the bottleneck. The connecting end opens them when the first large
// tensor is sent, using tokens that the peer has sent over the pipe. Until then, or if none can be opened, everything uses the pipe's own
// connection. Thread-safe.
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

// The user of the connections. Its functions may be called on any thread, and concurrently.
class stripe_owner {
 public:
  // A piece arrives over one of the connections. See frame_user.
  virtual result<std::span<std::byte>> piece_begins(const frame_head& head) = 0;
  virtual status piece_arrived(const frame_head& head) = 0;
  // A connection used for pieces was lost; what was in flight on it will not arrive. closed: the peer or the network closed it. Any other
  // error: the peer broke the protocol.
  virtual void stripe_lost(const status& why) noexcept = 0;
  // Sends this over the pipe's own connection. The connecting end requests further connections, or reports why (code, body) it cannot open
  // any; the peer sends a stripe_offer, or why it cannot make one.
  virtual void say_of_stripes(std::uint32_t code, std::vector<std::byte> body) = 0;

 protected:
  ~stripe_owner() = default;
};

class pipe_stripes final : public stripe_host, public std::enable_shared_from_this<pipe_stripes> {
 public:
  static constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;  // minimum for a tensor that uses them, and for its pieces

  // most: the pipe's connections, including its own. own: the pipe's own connection. close_within: as in pipe_options.
  pipe_stripes(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, std::shared_ptr<reactors> more,
               std::shared_ptr<connection> own, bool connects, unsigned most, std::chrono::milliseconds close_within,
               std::weak_ptr<stripe_owner> owner);

  // Sets how many connections the peer would use. Call before anything else.
  void agree(std::uint32_t most_of_other) noexcept { agreed_.store(std::clamp(most_of_other, 1U, most_)); }
  // Called when the ends have agreed on the channel.
  void allow() noexcept { allowed_.store(true); }
  [[nodiscard]] unsigned agreed() const noexcept { return agreed_.load(); }
  // Returns the number of connections, including the pipe's own.
  [[nodiscard]] unsigned count() const noexcept { return static_cast<unsigned>(count_.load()); }
  // Returns the piece size, which is the same at both ends. A short tensor is divided into about one piece per connection.
  [[nodiscard]] std::uint64_t piece_bytes(std::uint64_t length) const noexcept;
  // Returns why pieces can only use the pipe's own connection; empty if they have others or may get some.
  [[nodiscard]] std::string refusal() const;

  // Call when a large tensor is being sent: go_on() then opens the connections, once.
  void want() noexcept { wanted_.store(true, std::memory_order_relaxed); }
  // Sends the queued frames. Do not call with a lock held.
  void go_on() noexcept;
  // Handles a message from the peer about further connections.
  status told(const frame_head& head, std::span<const std::byte> body);
  // Queues the frame on the least busy connection. kept: released once the frame has left.
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
    std::shared_ptr<stripe> user;                       // null: the pipe's own connection
    std::shared_ptr<std::atomic<std::uint64_t>> bytes;  // bytes queued there
    std::atomic<bool> fresh{false};                     // something has been queued since the last flush
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
  // Entries before count_ are constant.
  std::array<lane, limits::connections> lanes_;
  std::atomic<std::size_t> count_{1};

  mutable std::mutex lock_;  // guards the members below, and adding a lane
  bool closed_ = false;
  bool offered_ = false;  // the peer has sent tokens
  std::shared_ptr<stripe_door> listening_;
  std::vector<std::shared_ptr<stripe>> joining_;  // until the peer has replied
  bool making_ = false;                           // more connections are being opened
  status refused_;                                // why there are fewer than there should be
  bool told_ = false;                             // the peer was notified
};

}  // namespace penstock::channel
