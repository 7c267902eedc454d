// Frames over one stream socket, both ways. A frame is a head and a body; bodies go straight from the sender's memory into the receiver's.
// Thread-safe. What comes in is told on the reactor's thread, one call at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "channel/reactor.hpp"
#include "penstock/status.hpp"
#include "sys/peer.hpp"

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

// Who speaks through a connection. On the reactor's thread.
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
  std::function<void(const status&)> written;
};

class connection final : public socket_handler, public std::enable_shared_from_this<connection> {
 public:
  // over: connected, or where connecting has begun.
  static std::shared_ptr<connection> make(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, sys::owned_socket over,
                                          bool connecting);
  connection(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, sys::owned_socket over, bool connecting);
  ~connection() override;

  // From now on user is told. Once.
  status start(std::weak_ptr<frame_user> user);
  // Queues it, and calls nobody. False: the connection has ended or was closed, and written() is never called.
  bool enqueue(outgoing_frame frame);
  // Sends of what is queued what the socket takes at once, up to a limit. Does not block.
  void flush();
  // Nothing that frames of this message were lent is read after this, and their written() is not called: those that have not begun to leave
  // go, and of one that has the rest is copied.
  void withdraw(std::uint64_t message);
  // The bodies of this message that are arriving or will go nowhere. Nothing is written to their memory after this.
  void divert(std::uint64_t message);
  // Sends what is queued and then ends, or ends at once where that cannot be. Frames that never left are told so. Nothing is written to
  // memory that begins() named after this.
  void close();

  void ready(bool readable, bool writable) noexcept override;

 private:
  void read() noexcept;
  status read_some(std::uint64_t& left);
  [[nodiscard]] iovec next_part();
  status take(std::size_t bytes);
  void flush_up_to(std::uint64_t most) noexcept;
  void end(const status& why) noexcept;
  void finish_end() noexcept;
  void watch_writing(bool on) noexcept;

  const std::shared_ptr<sys::peer> door_;
  const std::shared_ptr<reactor> reactor_;
  const sys::owned_socket socket_;
  std::uint64_t token_ = 0;
  std::weak_ptr<frame_user> user_;

  // --- what comes in: on the reactor's thread, with the lock where another may divert it
  std::mutex in_lock_;
  frame_head head_;
  std::size_t head_bytes_ = 0;
  std::span<std::byte> target_;
  std::uint64_t body_bytes_ = 0;
  bool wanted_ = false;
  bool diverted_ = false;
  std::array<std::byte, 16384> nowhere_;

  // --- what goes out
  std::mutex out_lock_;              // guards what follows
  std::list<outgoing_frame> queue_;  // the first stays where it is while it is sent
  std::uint64_t sent_of_first_ = 0;
  bool flushing_ = false;  // some thread is; the others leave it to that one
  unsigned telling_ = 0;   // threads that are telling of a frame that it has left
  bool connecting_;
  bool watched_ = false;  // the reactor tells when there is room
  bool closing_ = false;
  bool told_ = false;  // everybody of the end
  status ended_;
};

}  // namespace penstock::channel
