// One connection to a server, and the fetch that it serves. Sends the request, with the body directly from the caller's memory, reads the
// response head, and receives the body into its destination. Owned by a reactor, and runs only on the reactor's thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "remote/net/fetch.hpp"
#include "remote/net/origin.hpp"
#include "remote/net/patience.hpp"
#include "remote/net/response_head.hpp"
#include "remote/net/settings.hpp"
#include "sys/web.hpp"

namespace penstock::source::remote {

class line;
class reactor;

// Assigns fetches to lines. Called on reactor threads; must not block for longer than it takes to lock a mutex.
class line_owner {
 public:
  using clock = std::chrono::steady_clock;
  // Reports that the line's fetch has ended. how: the verdict (body: complete). On return, how contains the final decision: body and
  // refused are final, and the line reports them with tell() after it has sent its next request. Returns the next fetch; if null, the line
  // becomes idle or, without line_goes_on, closes.
  virtual fetch* ended(line& on, fetch& what, verdict& how, bool line_goes_on) noexcept = 0;
  // Returns a fetch for a line that has none; if null, the line becomes idle.
  [[nodiscard]] virtual fetch* next_for(line& one) noexcept = 0;
  // time: how long the line's fetch has been in progress. Returns true if the rest must be requested on another connection and this one
  // closed.
  [[nodiscard]] virtual bool is_late(line& on, const fetch& what, clock::duration time) noexcept = 0;
  // Called when a line is about to be destroyed. If it has been assigned a fetch but has not sent it, the fetch is requested elsewhere.
  virtual void gone(line& one) noexcept = 0;
  virtual void sent() noexcept = 0;
  // Measures the throughput of a server that is sending bytes.
  virtual void look_at(const std::shared_ptr<origin>& of) noexcept = 0;
  // Counts object bytes received over the line.
  virtual void received(const line& over, std::uint64_t bytes) noexcept = 0;
  // Reports a period in which a reactor used a whole core to receive over TLS.
  virtual void tls_bound(clock::time_point from, clock::time_point until) noexcept = 0;
  // Queues fetches whose pause is over. Returns when the next pause ends.
  virtual clock::time_point queue_due(clock::time_point now) noexcept = 0;
  // Returns true if the fetch must end immediately: it was cancelled, or the program was asked to stop.
  [[nodiscard]] virtual bool is_unwanted(const fetch& what) const noexcept = 0;
  [[nodiscard]] virtual const network_settings& settings() const noexcept = 0;
  [[nodiscard]] virtual const patience& patience_with(const fetch& what) const noexcept = 0;
  static void tell(fetch& what, const verdict& how) noexcept {
    what.owner->ended(what, how.then == verdict::kind::body ? status() : how.error);
  }

 protected:
  ~line_owner() = default;
};

class line final {
 public:
  using clock = std::chrono::steady_clock;
  line(std::unique_ptr<sys::web_connection> over, std::shared_ptr<origin> to, line_owner& with, reactor& by)
      : over_(std::move(over)), to_(std::move(to)), owner_(with), reactor_(by) {}
  line(const line&) = delete;
  line& operator=(const line&) = delete;

  [[nodiscard]] int descriptor() const noexcept { return over_->descriptor(); }
  [[nodiscard]] const std::shared_ptr<origin>& to() const noexcept { return to_; }
  [[nodiscard]] reactor& by() const noexcept { return reactor_; }
  [[nodiscard]] bool over_tls() const noexcept { return to_->place().tls; }

  // These return false if the line must be dropped.
  [[nodiscard]] bool begin() noexcept;  // for a new line, or one that was assigned a fetch
  [[nodiscard]] bool ready() noexcept;
  // Call before the line is dropped, with the reason.
  void lost(const status& why) noexcept;
  // Checks timeouts and cancellation.
  [[nodiscard]] bool look(clock::time_point now) noexcept;
  [[nodiscard]] bool wants_to_write() const noexcept { return !out_.empty() || sends_body(); }
  [[nodiscard]] bool is_idle() const noexcept { return now_ == phase::idle; }

  std::uint64_t token = 0;            // set by the reactor
  bool watches_for_room = false;      // set by the reactor
  std::atomic<bool> unwanted{false};  // close the line as soon as it is idle
  line* next_given = nullptr;         // link in the reactor's list of lines that were assigned a fetch
  fetch* given = nullptr;             // the assigned fetch, which has not started; guarded by the network's lock

 private:
  enum class phase : std::uint8_t { idle, head, body, error_body };
  enum class framing : std::uint8_t { length, chunks, until_closed };
  // The outcome of a step.
  enum class step : std::uint8_t { more, waits, line_ends };

  static constexpr unsigned most_informational = 16;  // responses with status 100 to 199 before the final one

  [[nodiscard]] bool start(fetch& what) noexcept;
  // These may throw bad_alloc, but only before they change anything.
  step take_head();
  step head_is_there();
  step take_body();
  step take_chunks();
  step take_chunks_from_text();
  step body_breaks_off();
  step take_error_body();
  step take_end();
  step body_is_there();
  step body_is_too_long();
  step error_is_there();
  [[nodiscard]] bool has_whole_error() const;
  step take_idle();
  step broken(const status& why) noexcept;
  step end(const verdict& how, bool line_goes_on) noexcept;
  status send_rest() noexcept;
  status send_body() noexcept;
  // Returns true if part of the request's body is unsent and the server still accepts it.
  [[nodiscard]] bool sends_body() const noexcept { return what_ != nullptr && sent_bytes_ < what_->sends_bytes && !refuses_rest_; }
  // Returns true if too few bytes have moved since the last check, one interval ago.
  [[nodiscard]] bool has_stalled(clock::time_point now) noexcept;
  result<std::size_t> receive(std::byte* target, std::size_t room);
  // Returns the memory for the body's next bytes.
  std::span<std::byte> room();
  // keep() stores received body bytes. came() counts bytes that were received in place.
  step keep(std::string_view bytes);
  step came(std::size_t bytes);

  const std::unique_ptr<sys::web_connection> over_;
  const std::shared_ptr<origin> to_;
  line_owner& owner_;
  reactor& reactor_;
  phase now_ = phase::idle;
  fetch* what_ = nullptr;
  std::string out_;               // unsent part of the request's head
  std::uint64_t sent_bytes_ = 0;  // body bytes sent
  bool refuses_rest_ = false;     // the server accepts no more of the body; it may have sent a reason
  std::string text_;              // received but not yet parsed: head, chunks or error body
  response_head head_;
  framing framed_ = framing::length;
  chunked_body chunks_;
  std::uint64_t body_left_ = 0;
  std::uint64_t body_bytes_ = 0;    // of the whole response
  bool ends_with_body_ = false;     // more bytes in the response are an error
  std::vector<std::byte> passing_;  // body bytes to be passed to a sink
  unsigned informational_ = 0;
  bool heard_ = false;         // something has been received since the request was sent
  bool used_ = false;          // the line has served an earlier fetch
  clock::time_point since_{};  // start of the request, the body or the idle time
  std::uint64_t since_bytes_ = 0;
  std::uint64_t untold_bytes_ = 0;  // received since the last report to the owner
};

}  // namespace penstock::source::remote
