// One piece of an object under way: a request, its answers, and what is asked again. Made and owned by its object until it has ended. It
// brings bytes, or sends them.
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

// Of a body whose length its head does not say: it ends where its answer does.
inline constexpr std::uint64_t unknown_bytes = ~std::uint64_t{0};

// What an object makes of an answer's head.
// errc::cancelled, made when the library is loaded: telling it takes no memory.
const status& unwanted() noexcept;

struct verdict {
  enum class kind : std::uint8_t {
    body,       // the bytes that were asked for follow, or the first of them
    again,      // the server could not now: asked again later
    renewed,    // asked again at once: credentials, a clock or an address were not right, and are now; or there is more to ask for
    later,      // what it is signed with is not there yet: asked a little later, which is no failure of the server's
    elsewhere,  // they are at another address, which the fetch has now
    refused,    // for good
  };
  kind then = kind::refused;
  std::uint64_t body_bytes = 0;        // of body; unknown_bytes
  bool ends_with_body = false;         // of body: if the answer has more bytes than these, they are not what was asked for
  status error{};                      // of the others
  std::chrono::milliseconds after{0};  // of again: not before; 0: as the network thinks
  bool throttled = false;              // of again: it was asked too much
  bool unsent = false;                 // of renewed: its connection had gone, so the same is asked for at the same place
  bool silent = false;                 // its connection did not answer, though it was kept: others may not, either
  int http_status = 0;                 // of again: that the server answered with; 0: it did not
};

// Whom a fetch belongs to. Called on the threads of the network, and with none of its locks.
class fetch_owner {
 public:
  virtual ~fetch_owner() = default;
  // The whole head of a request for what is missing, with its last empty line.
  virtual result<std::string> request_of(fetch& what) = 0;
  // body: of an answer that is an error, as far as it was read; asked once all of it has come.
  virtual verdict judge(const response_head& head, std::string_view body, fetch& what) = 0;
  // It has ended: for good, exactly once. What it filled is touched no more, and it may go.
  virtual void ended(fetch& what, status how) noexcept = 0;
};

// Takes the bytes of an answer in order, where they are not to lie in one piece of memory.
class body_sink {
 public:
  // Bytes at that offset, counted from where the fetch began. May block for as long as a disk takes. Errors end the fetch for good.
  virtual status take(std::span<const std::byte> bytes, std::uint64_t offset) = 0;

 protected:
  ~body_sink() = default;
};

struct fetch {
  fetch_owner* owner = nullptr;
  std::shared_ptr<origin> at;
  std::shared_ptr<origin> home;   // where its object is
  const patience* how = nullptr;  // null: the network's own
  std::string target;             // where it was sent elsewhere: path and query there, for what was missing then; empty: the object's
  std::byte* memory = nullptr;
  body_sink* sink = nullptr;  // instead of memory
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t done = 0;
  std::uint64_t most_done = 0;       // before it began again
  const std::byte* sends = nullptr;  // what its request has as a body, of one that is no GET; stays as it is until the fetch has ended
  std::uint64_t sends_bytes = 0;
  bool may_hedge = false;                     // where it is late, it may be asked for a second time beside the first: of reads alone
  bool gathers = false;                       // an answer is short, and judged once all of it is there, whatever its status says
  bool bodiless = false;                      // an answer has no body, whatever its head says: to HEAD
  bool despite_stop = false;                  // sent also once the program was asked to stop: its owner bounds how long it takes
  std::chrono::milliseconds works_within{0};  // of a server that may work for longer than others before it answers; 0: none
  unsigned tries = 0;                         // that failed since bytes last came
  unsigned moves = 0;                         // to other addresses
  unsigned renewals = 0;
  unsigned short_answers = 0;                             // that brought much less than was asked for
  std::chrono::steady_clock::time_point put_off_since{};  // since it could first not be signed
  std::chrono::steady_clock::time_point asked{};          // when the request for what is missing was sent
  std::atomic<bool> cancelled{false};

  // The network's.
  enum class place : std::uint8_t { none, queued, waiting, carried };
  place where = place::none;
  fetch* next = nullptr;
  fetch* previous = nullptr;
  class line* on = nullptr;                     // of one that is carried
  std::chrono::steady_clock::time_point due{};  // of one that waits

  [[nodiscard]] std::uint64_t missing() const noexcept { return length - done; }
};

// Fetches in a row; adding one allocates nothing. One is in at most one of these.
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
