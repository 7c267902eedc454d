// One connection to a server, and the fetch that it carries. Sends the request with its body straight from the caller's memory, reads the
// response head, and receives the body into its destination. Owned by a reactor, and runs on the reactor's thread only.
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

#include "source/remote/fetch.hpp"
#include "source/remote/origin.hpp"
#include "source/remote/patience.hpp"
#include "source/remote/response_head.hpp"
#include "source/remote/settings.hpp"
#include "sys/web.hpp"

namespace penstock::source::remote {

class line;
class reactor;

// Gives fetches to lines. Called on the threads of reactors; must not block for longer than it takes to lock a mutex.
class line_owner {
 public:
  using clock = std::chrono::steady_clock;
  // Reports that the line's fetch has ended. how: the verdict (body: complete); on return, what happens to the fetch: body and refused are
  // final, and the line reports them with tell() after it has sent its next request. Returns the next fetch; null: none, and the line
  // becomes idle or, without line_goes_on, closes.
  virtual fetch* ended(line& on, fetch& what, verdict& how, bool line_goes_on) noexcept = 0;
  // Returns a fetch for a new line or one without a fetch; null: the line becomes idle.
  [[nodiscard]] virtual fetch* next_for(line& one) noexcept = 0;
  // time: how long the line's fetch has been under way. Returns true if its rest must be requested on another connection and this one
  // closed.
  [[nodiscard]] virtual bool is_late(line& on, const fetch& what, clock::duration time) noexcept = 0;
  // The line is about to be destroyed. A fetch that it was given but has not sent is requested elsewhere.
  virtual void gone(line& one) noexcept = 0;
  virtual void sent() noexcept = 0;
  // Counts object bytes received over the line.
  virtual void received(const line& over, std::uint64_t bytes) noexcept = 0;
  // Reports a time in which a reactor used a whole core to receive over TLS.
  virtual void tls_bound(clock::time_point from, clock::time_point until) noexcept = 0;
  // Queues fetches whose pause has ended. Returns when the next pause ends.
  virtual clock::time_point queue_due(clock::time_point now) noexcept = 0;
  // Returns true if the fetch must end now: it was cancelled, or the program was asked to stop.
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
  [[nodiscard]] bool begin() noexcept;  // for a new line, or one that was given a fetch
  [[nodiscard]] bool ready() noexcept;
  // The line is about to be dropped for that reason.
  void lost(const status& why) noexcept;
  // Checks timeouts and cancellation.
  [[nodiscard]] bool look(clock::time_point now) noexcept;
  [[nodiscard]] bool wants_to_write() const noexcept { return !out_.empty() || sends_body(); }
  [[nodiscard]] bool is_idle() const noexcept { return now_ == phase::idle; }

  std::uint64_t token = 0;            // set by the reactor
  bool watches_for_room = false;      // set by the reactor
  std::atomic<bool> unwanted{false};  // close the line as soon as it is idle
  line* next_given = nullptr;         // in the reactor's list of lines that were given a fetch
  fetch* given = nullptr;             // fetch that has not begun; guarded by the network's lock

 private:
  enum class phase : std::uint8_t { idle, head, body, error_body };
  enum class framing : std::uint8_t { length, chunks, until_closed };
  // Outcome of a step.
  enum class step : std::uint8_t { more, waits, line_ends };

  static constexpr unsigned most_informational = 16;  // responses of 100 to 199 before the final one

  [[nodiscard]] bool start(fetch& what) noexcept;
  // These throw bad_alloc before they change anything.
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
  // True if part of the request's body is unsent and the server still accepts it.
  [[nodiscard]] bool sends_body() const noexcept { return what_ != nullptr && sent_bytes_ < what_->sends_bytes && !refuses_rest_; }
  // Returns true if too few bytes have moved since the last check, one interval ago.
  [[nodiscard]] bool has_stalled(clock::time_point now) noexcept;
  result<std::size_t> receive(std::byte* target, std::size_t room);
  // Returns the memory for the next bytes of the body.
  std::span<std::byte> room();
  // keep(): stores received bytes of the body. came(): counts bytes that were received in place.
  step keep(std::string_view bytes);
  step came(std::size_t bytes);

  const std::unique_ptr<sys::web_connection> over_;
  const std::shared_ptr<origin> to_;
  line_owner& owner_;
  reactor& reactor_;
  phase now_ = phase::idle;
  fetch* what_ = nullptr;
  std::string out_;               // unsent part of the request's head
  std::uint64_t sent_bytes_ = 0;  // of the request's body
  bool refuses_rest_ = false;     // the server accepts no more of the body; it may have said why
  std::string text_;              // received but not yet parsed: head, chunks or error
  response_head head_;
  framing framed_ = framing::length;
  chunked_body chunks_;
  std::uint64_t body_left_ = 0;
  std::uint64_t body_bytes_ = 0;    // of the whole response
  bool ends_with_body_ = false;     // more bytes in the response are an error
  std::vector<std::byte> passing_;  // body bytes on their way to a sink
  unsigned informational_ = 0;
  bool heard_ = false;         // something was received since the request was sent
  bool used_ = false;          // the line has carried an earlier fetch
  clock::time_point since_{};  // start of the request, the body or the idle time
  std::uint64_t since_bytes_ = 0;
  std::uint64_t untold_bytes_ = 0;  // received since the last report to the owner
};

}  // namespace penstock::source::remote
