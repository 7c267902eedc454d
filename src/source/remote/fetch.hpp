// A request for one piece of an object, with its responses and retries. Its object creates and owns it until it has ended. It receives
// bytes, or sends them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "source/remote/response_head.hpp"

namespace penstock::source::remote {

class origin;
struct fetch;
struct patience;

// Length of a body whose head does not give one: it ends with the response.
inline constexpr std::uint64_t unknown_bytes = ~std::uint64_t{0};

// Returns errc::cancelled, created when the library is loaded, so that reporting it needs no memory.
const status& unwanted() noexcept;

// What an object decides about a response.
struct verdict {
  enum class kind : std::uint8_t {
    body,       // the requested bytes follow, or the first of them
    again,      // the server could not answer now: retry later
    renewed,    // retry at once: credentials, clock or address were wrong and are now corrected, or there is more to request
    later,      // the credentials for signing are not there yet: retry soon; not a failure of the server
    elsewhere,  // the bytes are at another address, which the fetch now has
    refused,    // final error
  };
  kind then = kind::refused;
  std::uint64_t body_bytes = 0;        // for body; may be unknown_bytes
  bool ends_with_body = false;         // for body: more bytes in the response mean that they are not the requested ones
  status error{};                      // for the other kinds
  std::chrono::milliseconds after{0};  // for again: the earliest retry; 0: the network decides
  bool throttled = false;              // for again: too many requests
  bool unsent = false;                 // for renewed: the connection had closed, so the same request goes to the same place
  bool silent = false;                 // a kept connection did not respond; others may not respond either
  int http_status = 0;                 // for again: status of the response; 0: there was none
};

// The owner of a fetch. Called on the threads of the network, without any of its locks.
class fetch_owner {
 public:
  virtual ~fetch_owner() = default;
  // Returns the whole head of a request for the missing bytes, with the final empty line.
  virtual result<std::string> request_of(fetch& what) = 0;
  // Judges a response. body: of an error response, as far as it was read; called once all of it was received.
  virtual verdict judge(const response_head& head, std::string_view body, fetch& what) = 0;
  // The fetch has ended for good. Called exactly once. The network no longer touches the fetch or its memory.
  virtual void ended(fetch& what, status how) noexcept = 0;
};

// Receives the bytes of a response in order, if they do not go into one piece of memory.
class body_sink {
 public:
  // Takes bytes at that offset from the beginning of the fetch. May block for as long as a disk takes. An error ends the fetch for good.
  virtual status take(std::span<const std::byte> bytes, std::uint64_t offset) = 0;

 protected:
  ~body_sink() = default;
};

struct fetch {
  fetch_owner* owner = nullptr;
  std::shared_ptr<origin> at;
  std::shared_ptr<origin> home;   // server of the object's address
  const patience* how = nullptr;  // null: the network's own
  std::string target;             // path and query after a redirect, for the bytes missing then; empty: the object's
  std::byte* memory = nullptr;
  body_sink* sink = nullptr;  // instead of memory
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t done = 0;
  std::uint64_t most_done = 0;       // largest done before a restart
  const std::byte* sends = nullptr;  // body of the request, if it is not a GET; must not change until the fetch has ended
  std::uint64_t sends_bytes = 0;
  bool may_hedge = false;                     // if late, the rest may be requested on another connection instead; reads only
  bool gathers = false;                       // the response is short, and judged once it is complete, whatever its status
  bool bodiless = false;                      // the response has no body, whatever its head says (HEAD)
  bool despite_stop = false;                  // also sent after the program was asked to stop; the owner bounds the time
  std::chrono::milliseconds works_within{0};  // time that the server may work before it responds, if longer than usual; 0: as usual
  unsigned tries = 0;                         // failed attempts since bytes were last received
  unsigned moves = 0;                         // redirects
  unsigned renewals = 0;
  unsigned short_answers = 0;                             // responses with far fewer bytes than requested
  std::chrono::steady_clock::time_point put_off_since{};  // when signing first failed
  std::chrono::steady_clock::time_point asked{};          // when the request for the missing bytes was sent
  std::atomic<bool> cancelled{false};

  // Used by the network.
  enum class place : std::uint8_t { none, queued, waiting, carried };
  place where = place::none;
  fetch* next = nullptr;
  fetch* previous = nullptr;
  class line* on = nullptr;                     // if carried
  std::chrono::steady_clock::time_point due{};  // if waiting

  [[nodiscard]] std::uint64_t missing() const noexcept { return length - done; }
};

// An intrusive list of fetches: adding one does not allocate. A fetch is in at most one list.
class fetch_list {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] fetch* front() const noexcept { return first_; }
  void push_back(fetch& added) noexcept {
    added.previous = last_;
    added.next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = &added;
    last_ = &added;
    ++count_;
  }
  void push_front(fetch& added) noexcept {
    added.previous = nullptr;
    added.next = first_;
    (first_ == nullptr ? last_ : first_->previous) = &added;
    first_ = &added;
    ++count_;
  }
  void remove(fetch& gone) noexcept {
    (gone.previous == nullptr ? first_ : gone.previous->next) = gone.next;
    (gone.next == nullptr ? last_ : gone.next->previous) = gone.previous;
    --count_;
  }
  fetch* pop_front() noexcept {
    auto* const gone = first_;
    if (gone != nullptr) remove(*gone);
    return gone;
  }

 private:
  fetch* first_ = nullptr;
  fetch* last_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace penstock::source::remote
