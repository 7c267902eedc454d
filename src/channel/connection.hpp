// Frames over one stream socket, in both directions. A frame is a head and a body; bodies go straight from the sender's memory into the
// receiver's. Two processes on one host switch to shared memory after the greeting; the socket then only wakes sleeping threads and shows
// when the peer has disconnected. Thread-safe. Incoming frames are reported one call at a time, on the reactor's thread or on a polling
// thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "channel/reactor.hpp"
#include "channel/ring.hpp"
#include "channel/used_socket.hpp"
#include "penstock/status.hpp"
#include "sys/peer.hpp"
#include "sys/tls.hpp"

namespace penstock::channel {

// The wire format. Both ends are x86-64 or aarch64, so it is little-endian.
struct frame_head {
  std::uint32_t kind = 0;
  std::uint32_t code = 0;
  std::uint64_t message = 0;
  std::uint64_t part = 0;
  std::uint64_t length = 0;  // of the body
};
static_assert(sizeof(frame_head) == 32);

// The user of a connection. Called one call at a time.
class frame_user {
 public:
  virtual ~frame_user() = default;
  // Returns the destination of this frame's body: a span of the same length, which must stay valid until arrived(), lost() or divert(). An
  // empty span discards the body. An error closes the connection.
  virtual result<std::span<std::byte>> begins(const frame_head& head) = 0;
  virtual status arrived(const frame_head& head) = 0;
  // Called exactly once, when the connection has ended. It is the last call and may run on any thread.
  virtual void lost(const status& why) noexcept = 0;
};

struct outgoing_frame {
  frame_head head;
  std::vector<std::byte> own;       // first part of the body
  std::span<const std::byte> lent;  // second part; must stay valid until written() is called
  // Called once: ok when the whole frame has been sent, otherwise the reason it never will be. Runs on any thread that flushes. May be
  // empty.
  std::function<void(const status&)> written{};
  sys::owned_descriptor passed{};  // sent with the frame; only before a ring is used
  bool last_of_socket = false;     // frames queued after it are sent through the ring
};

class connection final : public socket_handler, public std::enable_shared_from_this<connection> {
 public:
  // over: a connected or connecting socket. secure: encrypts the traffic; null: not encrypted.
  static std::shared_ptr<connection> make(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, sys::owned_descriptor over,
                                          bool connecting, std::unique_ptr<sys::tls_stream> secure = nullptr);
  connection(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, sys::owned_descriptor over, bool connecting,
             std::unique_ptr<sys::tls_stream> secure);
  ~connection() override;

  // Starts reading and reports to user. Call once.
  status start(std::weak_ptr<frame_user> user);
  // Call from arrived(): bytes after that frame arrive through this ring. leaves: frames queued from now on are also sent through it;
  // otherwise sending switches to the ring after a frame with last_of_socket.
  void use_ring(std::unique_ptr<ring_pair> ring, bool leaves);
  // The maximum number of descriptors that the peer may pass ahead of the frames that refer to them; more close the connection. The peer
  // passes at most half as many ahead, so if this many have arrived, a frame is ready to be read.
  static constexpr std::size_t most_passed = 256;
  static constexpr std::size_t most_passed_first = 2;  // without a ring: the descriptor of the ring's memory, if it arrives alone
  // Returns the next descriptor that has arrived, or an invalid one.
  [[nodiscard]] sys::owned_descriptor take_passed() noexcept;
  // Passes a descriptor: the peer has it before any frame queued later. Returns false if it cannot be passed. Needs a ring.
  bool pass(int descriptor);
  [[nodiscard]] bool has_ring() const noexcept { return has_ring_.load(); }
  // Returns the words next to the ring, in a region that can be pinned: the local permits and the peer's.
  [[nodiscard]] std::span<std::byte> permit_region() const noexcept { return ring_->permit_region(); }
  [[nodiscard]] permit own_permit(std::uint32_t slot, std::uint32_t turn) const noexcept { return ring_->own_permit(slot, turn); }
  [[nodiscard]] permit permit_of_other(std::uint32_t slot, std::uint32_t turn) const noexcept { return ring_->permit_of_other(slot, turn); }

  // Between begin_polling() and end_polling(), the caller's thread reads the ring, if there is one, so no thread needs to be woken. poll()
  // returns true if something has arrived.
  void begin_polling() noexcept;
  bool poll() noexcept;
  void end_polling() noexcept;
  [[nodiscard]] bool polled() const noexcept { return pollers_.load(std::memory_order_relaxed) > 0; }

  // Queues a frame without waking a thread. Returns false if the connection has ended or was closed; written() is then never called.
  bool enqueue(outgoing_frame frame);
  // Sends the queued frames that the socket accepts at once, up to a limit. Does not block.
  void flush();
  // Like flush(), but on the reactor's thread and without a limit.
  void flush_elsewhere();
  // Stops using memory lent by frames of this message, and never calls their written(): frames not yet started are dropped, and the rest of
  // a partly sent frame is copied.
  void withdraw(std::uint64_t message);
  // Discards bodies of this message that are arriving or will arrive. Nothing is written to their memory after this.
  void divert(std::uint64_t message);
  // Sends the queued frames, then stops sending; incoming frames are still reported.
  void end_sending();
  // Sends the queued frames, then closes when the peer does, or at once if that is impossible; in any case after this time. written()
  // reports frames that were never sent. Nothing is written to memory from begins() after this.
  void close(std::chrono::milliseconds within) noexcept;
  // Closes now, even if frames are queued; if another thread is reporting incoming frames, as soon as it is done. Do not call while holding
  // a lock that lost() takes.
  void abandon() noexcept;
  // Returns true if something has arrived that was not read yet.
  [[nodiscard]] bool has_something() noexcept;
  // See sys::peer.
  result<sys::credentials> credentials_of_other();
  result<sys::socket_address> address_of(bool of_other);
  // Returns null if the traffic is not encrypted.
  [[nodiscard]] const sys::tls_stream* secure() const noexcept { return secure_.get(); }

  next ready(bool readable, bool writable) noexcept override;
  void due() noexcept override { abandon(); }

 private:
  bool read_in_turn() noexcept;
  bool read() noexcept;
  next rest() noexcept;
  next look_later() noexcept;
  void hear_calls() noexcept;
  [[nodiscard]] bool takes_more_passed() noexcept;
  bool call(std::span<const int> passed = {}) noexcept;
  sys::owned_descriptor next_passed() noexcept;
  result<std::size_t> receive(const iovec& part);
  result<std::size_t> get(const iovec& part);
  result<std::size_t> put(std::span<const iovec> parts);
  result<std::size_t> send(int fd, std::span<const iovec> parts, std::span<const int> passed);
  bool wait_to_send(bool by_ring) noexcept;
  status read_some(std::uint64_t& left);
  [[nodiscard]] iovec next_part();
  [[nodiscard]] bool hears_tls() const noexcept;
  status take(std::size_t bytes);
  void flush_up_to(std::uint64_t most) noexcept;
  void end(const status& why) noexcept;
  void end_abandoned() noexcept;
  void let_go_of_passed() noexcept;
  void finish_end() noexcept;
  void watch_writing(bool on) noexcept;

  const std::shared_ptr<sys::peer> door_;
  const std::shared_ptr<reactor> reactor_;
  used_socket socket_;  // closed when the connection ends
  const std::unique_ptr<sys::tls_stream> secure_;
  std::uint64_t token_ = 0;
  std::weak_ptr<frame_user> user_;

  std::unique_ptr<ring_pair> ring_;    // constant once set
  std::atomic<bool> has_ring_{false};  // incoming bytes arrive through it
  std::atomic<unsigned> pollers_{0};
  std::atomic<unsigned> polls_{0};        // number of polls that have started
  unsigned polls_seen_ = 0;               // by the reactor
  std::atomic<bool> looks_later_{false};  // the reactor will check again, because a thread has just polled
  std::mutex passed_lock_;                // guards passed_
  std::deque<sys::owned_descriptor> passed_;
  bool keeps_passed_ = true;          // also guarded: descriptors will still be used
  std::atomic<bool> flooded_{false};  // with too many descriptors
  std::atomic<bool> gone_{false};     // the peer has disconnected; bytes left in the ring are still read
  std::atomic<bool> over_{false};     // reading has stopped
  std::atomic<bool> abandoned_{false};

  // --- input: owned by the holder of reading_, and guarded by in_lock_ where another thread may divert it
  std::atomic_flag reading_ = ATOMIC_FLAG_INIT;
  std::mutex in_lock_;
  frame_head head_;
  std::size_t head_bytes_ = 0;
  bool heard_frame_ = false;
  std::span<std::byte> target_;
  std::uint64_t body_bytes_ = 0;
  bool wanted_ = false;
  bool diverted_ = false;
  bool has_more_ = false;  // already taken from the socket, which will not report it again; owned by the reactor's thread; TLS only
  std::array<std::byte, 16384> nowhere_;

  // --- output
  std::mutex out_lock_;              // guards the members below
  std::list<outgoing_frame> queue_;  // the first frame keeps its address while it is sent
  std::uint64_t sent_of_first_ = 0;
  bool flushing_ = false;  // a thread is flushing; the others leave the work to it
  unsigned telling_ = 0;   // threads that are reporting a sent frame
  bool connecting_;
  bool by_ring_ = false;  // frames are sent through the ring
  bool watched_ = false;  // the reactor reports when there is room
  bool closing_ = false;
  bool closes_ = false;  // closing; a time limit applies
  bool told_ = false;    // the end was reported
  status ended_;
};

}  // namespace penstock::channel
