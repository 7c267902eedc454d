// The gate that public calls pass, so that quiesce() can wait until none is in flight. It belongs to the process, because a call may use
// several engines. A call costs two increments on a cache line that few threads share. Thread-safe. Open in a forked child.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace penstock::core {

class resident;

// Marks the calling thread as inside a public call. While the gate is not open, the constructor waits, unless the thread is already inside
// a call. While the gate is closing, the library's threads do not wait either, because their requests must complete before it can shut.
class calling {
 public:
  calling() noexcept;
  calling(const calling&) = delete;
  calling& operator=(const calling&) = delete;
  ~calling();
};

// Counts an operation that continues after its call has returned. Create it inside a call. For one thread at a time.
class in_flight {
 public:
  in_flight() noexcept;
  in_flight(const in_flight&) = delete;
  in_flight& operator=(const in_flight&) = delete;
  ~in_flight() { end(); }
  void end() noexcept;

 private:
  std::uint32_t process_;  // the number of forks before the operation was counted, plus one; 0: it has ended
};

namespace gate {

// Registers an object that quiesce() puts to rest, without keeping it alive. Throws bad_alloc.
void add(const std::shared_ptr<resident>& added);
// Returns the existing objects, newest first.
[[nodiscard]] std::vector<std::shared_ptr<resident>> residents();

// The states of the gate. From closing until asleep, only the thread that closed the gate changes the state.
enum class state : std::uint8_t {
  open,
  closing,  // only the library's threads may enter
  shut,     // no thread may enter, except the one that shut it
  asleep,   // everything rests; the next call wakes the residents and opens the gate
};
void set(state next) noexcept;
// Starts to close the gate. Returns false if another thread has done so.
[[nodiscard]] bool try_close() noexcept;
// After try_close(), lets the calling thread make public calls. The destructor lets all threads in; the next call wakes the residents.
class keeper {
 public:
  keeper() noexcept;
  keeper(const keeper&) = delete;
  keeper& operator=(const keeper&) = delete;
  ~keeper();
};
// Returns true if no call and no operation is in flight, and no registered object is being destroyed.
[[nodiscard]] bool is_quiet() noexcept;
// Returns true if a registered object is being destroyed.
[[nodiscard]] bool is_ending() noexcept;
// Returns true if the calling thread is inside a call or is one of the library's threads.
[[nodiscard]] bool is_inside() noexcept;

}  // namespace gate

}  // namespace penstock::core
