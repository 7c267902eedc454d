// Frames over one stream socket, both ways. A frame is a head and a body; bodies go straight from the sender's memory into the receiver's.
// Two processes of one host go over to memory that they share, once they know each other; the socket then wakes whoever sleeps, and tells
// when the other end has disconnected. Thread-safe. What comes in is told one call at a time: on the reactor's thread, or on one that
// polls.
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

// As it travels: both ends are x86-64 or aarch64, least byte first.
struct frame_head {
  std::uint32_t kind = 0;
  std::uint32_t code = 0;
  std::uint64_t message = 0;
  std::uint64_t part = 0;
  std::uint64_t length = 0;  // of the body
};
static_assert(sizeof(frame_head) == 32);

// Who speaks through a connection. One call at a time.
class frame_user {
 public:
  virtual ~frame_user() = default;
  // Where the body of this frame goes: as many bytes, which stay valid until arrived(), lost() or divert(). An empty span for a body of
  // some length: nobody wants it. An error ends the connection.
  virtual result<std::span<std::byte>> begins(const frame_head& head) = 0;
  virtual status arrived(const frame_head& head) = 0;
  // The connection has ended; the last call, on any thread. It comes always.
  virtual void lost(const status& why) noexcept = 0;
};

struct outgoing_frame {
  frame_head head;
  std::vector<std::byte> own;       // the body's first part
  std::span<const std::byte> lent;  // its second, which stays valid until written() is called
  // Once: ok when all of it has left, else why it never will. On any thread that flushes. May be empty.
  std::function<void(const status&)> written{};
  sys::owned_descriptor passed{};  // goes with it; only before a ring is used
  bool last_of_socket = false;     // what is queued behind it leaves through the ring
};

class connection final : public socket_handler, public std::enable_shared_from_this<connection> {
 public:
  // over: connected, or where connecting has begun. secure: what passes there is encrypted by this; null: it is not.
  static std::shared_ptr<connection> make(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, sys::owned_descriptor over,
                                          bool connecting, std::unique_ptr<sys::tls_stream> secure = nullptr);
  connection(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, sys::owned_descriptor over, bool connecting,
             std::unique_ptr<sys::tls_stream> secure);
  ~connection() override;

  // From now on user is told. Once.
  status start(std::weak_ptr<frame_user> user);
  // From arrived(): what comes behind that frame comes by this ring. leaves: so does what is queued from now on leave by it; otherwise what
  // is queued behind a frame that is the last of the socket.
  void use_ring(std::unique_ptr<ring_pair> ring, bool leaves);
  // Descriptors that the other end may have passed ahead of the frames that tell of them; what is more ends the connection. It passes half
  // as many of which it has not told yet, so that with as many here there is a frame to be read.
  static constexpr std::size_t most_passed = 256;
  static constexpr std::size_t most_passed_first = 2;  // where there is no ring: that of the ring's memory, if it is alone
  // The next descriptor that has come, of none where there is none.
  [[nodiscard]] sys::owned_descriptor take_passed() noexcept;
  // The other end has the descriptor when a frame comes that is queued after this. False: it cannot be passed. Where there is a ring.
  bool pass(int descriptor);
  [[nodiscard]] bool has_ring() const noexcept { return has_ring_.load(); }
  // Words beside the ring, in a region to be pinned: what this end gives, and what the other does.
  [[nodiscard]] std::span<std::byte> permit_region() const noexcept { return ring_->permit_region(); }
  [[nodiscard]] permit own_permit(std::uint32_t slot, std::uint32_t turn) const noexcept { return ring_->own_permit(slot, turn); }
  [[nodiscard]] permit permit_of_other(std::uint32_t slot, std::uint32_t turn) const noexcept { return ring_->permit_of_other(slot, turn); }

  // Between the first and the last of these calls the caller's thread reads what comes, where there is a ring, and nobody has to be woken
  // for it. poll() is true when something has come.
  void begin_polling() noexcept;
  bool poll() noexcept;
  void end_polling() noexcept;
  [[nodiscard]] bool polled() const noexcept { return pollers_.load(std::memory_order_relaxed) > 0; }

  // Queues it, and calls nobody. False: the connection has ended or was closed, and written() is never called.
  bool enqueue(outgoing_frame frame);
  // Sends of what is queued what the socket takes at once, up to a limit. Does not block.
  void flush();
  // Has the reactor's thread do so instead, without a limit.
  void flush_elsewhere();
  // Nothing that frames of this message were lent is read after this, and their written() is not called: those that have not begun to leave
  // go, and of one that has the rest is copied.
  void withdraw(std::uint64_t message);
  // The bodies of this message that are arriving or will go nowhere. Nothing is written to their memory after this.
  void divert(std::uint64_t message);
  // Sends what is queued and then nothing more; what comes is told on.
  void end_sending();
  // Sends what is queued and then ends when the other end does too, or at once where that cannot be; and after this time in any case.
  // Frames that never left are told so. Nothing is written to memory that begins() named after this.
  void close(std::chrono::milliseconds within) noexcept;
  // Ends now, whatever is queued; where another thread is telling of what has come, as soon as it has. Not under a lock that lost() takes.
  void abandon() noexcept;
  // Something has come that was not read yet.
  [[nodiscard]] bool has_something() noexcept;
  // As sys::peer has them.
  result<sys::credentials> credentials_of_other();
  result<sys::socket_address> address_of(bool of_other);
  // Null: what passes is not encrypted.
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
  used_socket socket_;  // closed with the end of this
  const std::unique_ptr<sys::tls_stream> secure_;
  std::uint64_t token_ = 0;
  std::weak_ptr<frame_user> user_;

  std::unique_ptr<ring_pair> ring_;    // does not change once it is there
  std::atomic<bool> has_ring_{false};  // what comes in comes by it
  std::atomic<unsigned> pollers_{0};
  std::atomic<unsigned> polls_{0};        // that have begun so far
  unsigned polls_seen_ = 0;               // by the reactor
  std::atomic<bool> looks_later_{false};  // the reactor will, since somebody has polled just now
  std::mutex passed_lock_;                // guards passed_
  std::deque<sys::owned_descriptor> passed_;
  bool keeps_passed_ = true;          // likewise guarded: somebody will take them
  std::atomic<bool> flooded_{false};  // with descriptors
  std::atomic<bool> gone_{false};     // the other end; what is left in the ring still counts
  std::atomic<bool> over_{false};     // nothing is read any more
  std::atomic<bool> abandoned_{false};

  // --- what comes in: of whoever has this, with the lock where another may divert it
  std::atomic_flag reading_ = ATOMIC_FLAG_INIT;
  std::mutex in_lock_;
  frame_head head_;
  std::size_t head_bytes_ = 0;
  bool heard_frame_ = false;
  std::span<std::byte> target_;
  std::uint64_t body_bytes_ = 0;
  bool wanted_ = false;
  bool diverted_ = false;
  bool has_more_ = false;  // that was taken from the socket, which does not tell of it again; of the reactor's thread, with TLS
  std::array<std::byte, 16384> nowhere_;

  // --- what goes out
  std::mutex out_lock_;              // guards what follows
  std::list<outgoing_frame> queue_;  // the first stays where it is while it is sent
  std::uint64_t sent_of_first_ = 0;
  bool flushing_ = false;  // some thread is; the others leave it to that one
  unsigned telling_ = 0;   // threads that are telling of a frame that it has left
  bool connecting_;
  bool by_ring_ = false;  // what leaves
  bool watched_ = false;  // the reactor tells when there is room
  bool closing_ = false;
  bool closes_ = false;  // and will end in a while in any case
  bool told_ = false;    // everybody of the end
  status ended_;
};

}  // namespace penstock::channel
