// A request to receive or send one piece of an object, including responses and retries. Its object creates it and owns it until it
// completes.
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
#include "remote/net/response_head.hpp"

namespace penstock::source::remote {

class origin;
struct fetch;
struct patience;

// The length of a body for which the head contains no length: it ends with the response.
inline constexpr std::uint64_t unknown_bytes = ~std::uint64_t{0};

// Returns an errc::cancelled status that is created when the library is loaded, so reporting it needs no memory.
const status& unwanted() noexcept;

// An object's decision about a response.
struct verdict {
  enum class kind : std::uint8_t {
    body,       // the requested bytes follow, or at least the first of them
    again,      // the server cannot serve the request now: retry later
    renewed,    // retry immediately: credentials, clock or address were wrong and are now corrected, or there is more to request
    later,      // the credentials for signing are not available yet: retry soon; not a server failure
    elsewhere,  // the bytes are at another address, which the fetch now contains
    refused,    // final error
  };
  kind then = kind::refused;
  std::uint64_t body_bytes = 0;        // only for body; may be unknown_bytes
  bool ends_with_body = false;         // for body: if the response has more bytes, none of them are the requested ones
  status error{};                      // for the other kinds
  std::chrono::milliseconds after{0};  // for again: time until the earliest retry; 0: the network decides
  bool throttled = false;              // for again: too many requests
  bool unsent = false;                 // for renewed: the connection had been closed, so the same request is sent to the same server
  bool crowded = false;                // for again: a new connection was closed without a response; there may be too many
  bool silent = false;                 // a kept connection did not respond; others may not respond either
  int http_status = 0;                 // for again: the response's status; 0: there was no response
};

// The owner of a fetch. Called on the network's threads without any of its locks held.
class fetch_owner {
 public:
  virtual ~fetch_owner() = default;
  // Returns the complete head of a request for the missing bytes, including the final empty line.
  virtual result<std::string> request_of(fetch& what) = 0;
  // Judges a response. body: the body of an error response, as far as it was read; in that case called once all of it has been received.
  virtual verdict judge(const response_head& head, std::string_view body, fetch& what) = 0;
  // Called exactly once, when the fetch has completed or failed. The network no longer accesses the fetch or its memory.
  virtual void ended(fetch& what, status how) noexcept = 0;
};

// Receives the bytes of a response in order, if they are not received into contiguous memory.
class body_sink {
 public:
  // Takes bytes at an offset relative to the start of the fetch. May block for as long as a disk access takes. An error fails the fetch
  // permanently.
  virtual status take(std::span<const std::byte> bytes, std::uint64_t offset) = 0;

 protected:
  ~body_sink() = default;
};

struct fetch {
  fetch_owner* owner = nullptr;
  std::shared_ptr<origin> at;
  std::shared_ptr<origin> home;   // the server at the object's address
  const patience* how = nullptr;  // null: the network's own
  std::string target;             // path and query after a redirect, for the bytes that were missing then; empty: the object's own
  std::byte* memory = nullptr;
  body_sink* sink = nullptr;  // instead of memory
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t done = 0;
  std::uint64_t most_done = 0;       // the largest value of done before a restart
  const std::byte* sends = nullptr;  // the request body, if it is not a GET; must not change until the fetch completes
  std::uint64_t sends_bytes = 0;
  bool may_hedge = false;                     // if late, the rest may be requested on another connection instead; only for reads
  bool gathers = false;                       // the response is short and is judged once it is complete, whatever its status
  bool bodiless = false;                      // the response has no body, regardless of its head (HEAD)
  bool despite_stop = false;                  // sent even after the program was asked to stop; the owner limits the time
  std::chrono::milliseconds works_within{0};  // the time that the server may take to respond, if longer than usual; 0: the usual time
  unsigned tries = 0;                         // failed attempts since bytes were last received
  unsigned moves = 0;                         // redirects
  unsigned renewals = 0;
  unsigned short_answers = 0;                             // responses with far fewer bytes than requested
  std::chrono::steady_clock::time_point put_off_since{};  // when signing first failed
  std::chrono::steady_clock::time_point refused_since{};  // when refusals that were no failed attempts began
  std::uint64_t served_before = 0;                        // bytes that the server had sent to anyone when the last counted try began
  std::chrono::steady_clock::time_point asked{};          // when the request for the missing bytes was sent
  std::atomic<bool> cancelled{false};

  // --- Used only by the network
  enum class place : std::uint8_t { none, queued, waiting, carried };
  place where = place::none;
  fetch* next = nullptr;
  fetch* previous = nullptr;
  class line* on = nullptr;                     // if carried
  std::chrono::steady_clock::time_point due{};  // if waiting

  [[nodiscard]] std::uint64_t missing() const noexcept { return length - done; }
};

// An intrusive list of fetches, so adding one does not allocate. A fetch is in at most one list.
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
