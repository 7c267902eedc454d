// One connection to a server, and the fetch that it carries: sends the request, from where its body lies, reads the head of the answer, and
// receives the body where it is to lie. Belongs to a reactor, on whose thread all of it runs.
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

// Who gives lines their fetches. Called on the threads of reactors; may block for no longer than a lock takes.
class line_owner {
 public:
  using clock = std::chrono::steady_clock;
  // A line's fetch has ended there. how: body: it is complete; on return, what becomes of it: body or refused: for good, and the line says
  // so (tell) once its next request is on its way. Returns what that is; null: none, and the line is idle, or it does not go on.
  virtual fetch* ended(line& on, fetch& what, verdict& how, bool line_goes_on) noexcept = 0;
  // A new line, or one without a fetch, wants one; null: it is idle.
  [[nodiscard]] virtual fetch* next_for(line& one) noexcept = 0;
  // Its fetch has been under way for that long. True: it is to be asked for on another connection, and this one to go.
  [[nodiscard]] virtual bool is_late(line& on, const fetch& what, clock::duration time) noexcept = 0;
  // The line is about to go. A fetch that it was given and has not sent is asked for elsewhere.
  virtual void gone(line& one) noexcept = 0;
  virtual void sent() noexcept = 0;
  // Bytes of objects have come over it.
  virtual void received(const line& over, std::uint64_t bytes) noexcept = 0;
  // A reactor had a core's work with receiving over TLS.
  virtual void tls_bound(clock::time_point from, clock::time_point until) noexcept = 0;
  // Queues what was to wait until now. Returns when the next is due.
  virtual clock::time_point queue_due(clock::time_point now) noexcept = 0;
  // Whether it is to end now: it was cancelled, or the program was asked to stop.
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

  // Each returns whether the line goes on; false: it is to be dropped.
  [[nodiscard]] bool begin() noexcept;  // it is new, or was given a fetch
  [[nodiscard]] bool ready() noexcept;
  // It is about to be dropped for that reason.
  void lost(const status& why) noexcept;
  // Looks at its times, and whether its fetch was cancelled.
  [[nodiscard]] bool look(clock::time_point now) noexcept;
  [[nodiscard]] bool wants_to_write() const noexcept { return !out_.empty() || sends_body(); }
  [[nodiscard]] bool is_idle() const noexcept { return now_ == phase::idle; }

  std::uint64_t token = 0;            // of the reactor
  bool watches_for_room = false;      // likewise
  std::atomic<bool> unwanted{false};  // it is to go as soon as it is idle
  line* next_given = nullptr;         // in the reactor's list of those that were given a fetch
  fetch* given = nullptr;             // with the network's lock: that it has not begun with

 private:
  enum class phase : std::uint8_t { idle, head, body, error_body };
  enum class framing : std::uint8_t { length, chunks, until_closed };
  // What a step has come to.
  enum class step : std::uint8_t { more, waits, line_ends };

  static constexpr unsigned most_informational = 16;  // answers of 100 to 199 before the one that counts

  [[nodiscard]] bool start(fetch& what) noexcept;
  // These throw bad_alloc, before anything has come of them.
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
  // Some of the request's body is still to be sent, and the server takes it.
  [[nodiscard]] bool sends_body() const noexcept { return what_ != nullptr && sent_bytes_ < what_->sends_bytes && !refuses_rest_; }
  // How long may pass between two looks at how much has moved, and how much has to.
  [[nodiscard]] bool has_stalled(clock::time_point now) noexcept;
  result<std::size_t> receive(std::byte* target, std::size_t room);
  // Where the body's next bytes are received, and how many may be.
  std::span<std::byte> room();
  // Bytes of the body that have come, to be put there; and those that lie there already.
  step keep(std::string_view bytes);
  step came(std::size_t bytes);

  const std::unique_ptr<sys::web_connection> over_;
  const std::shared_ptr<origin> to_;
  line_owner& owner_;
  reactor& reactor_;
  phase now_ = phase::idle;
  fetch* what_ = nullptr;
  std::string out_;               // of the request's head, still to be sent
  std::uint64_t sent_bytes_ = 0;  // of its body
  bool refuses_rest_ = false;     // the server takes no more of it; it may have said why
  std::string text_;              // that has come and is not yet read: of the head, of chunks, of an error
  response_head head_;
  framing framed_ = framing::length;
  chunked_body chunks_;
  std::uint64_t body_left_ = 0;
  std::uint64_t body_bytes_ = 0;    // of the whole answer
  bool ends_with_body_ = false;     // the answer may have no byte more
  std::vector<std::byte> passing_;  // of a body on its way to a sink
  unsigned informational_ = 0;
  bool heard_ = false;         // anything, since the request was sent
  bool used_ = false;          // it has carried a fetch before this one
  clock::time_point since_{};  // the request was sent, the body began, or it is idle
  std::uint64_t since_bytes_ = 0;
  std::uint64_t untold_bytes_ = 0;  // that came since its owner was told
};

}  // namespace penstock::source::remote
