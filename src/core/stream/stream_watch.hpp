// Who sees how far streams have come: a thread that looks at the words that they write in the blocks of their requests. It looks all the
// time while they move, and every 50 us while they stand still; no function of the host is put onto a stream, which would cost it 30 us
// each. It never calls the device. One for an engine.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/intrusive_list.hpp"
#include "penstock/status.hpp"
#include "source/source.hpp"

namespace penstock::core {

// A request on a stream.
class stream_watched {
 public:
  enum class seen : std::uint8_t { nothing, moved, over };
  // Goes on as far as the stream has come. over: it has passed it, or never will; then end() is called, and nothing after it.
  virtual seen look() noexcept = 0;
  virtual void end() noexcept = 0;

 protected:
  ~stream_watched() = default;

 private:
  friend class stream_watch;
  const void* stream_ = nullptr;
  stream_watched* next_ = nullptr;                                 // that was queued later, onto the same stream once it has been looked at
  intrusive_list<stream_watched, &stream_watched::next_> behind_;  // of the first of a stream
  stream_watched* next_first_ = nullptr;                           // of another one
};

// Writes that streams will make to files.
struct stream_write {
  const source::source* to = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

class stream_watch {
 public:
  // spin: how long it looks on without sleeping after something has moved; zero where cores are few.
  explicit stream_watch(std::chrono::microseconds spin) : spin_(spin) {}
  stream_watch(const stream_watch&) = delete;
  stream_watch& operator=(const stream_watch&) = delete;
  ~stream_watch();  // ends what is left: requests that were given up

  // Looks after it from now on. Errors: out_of_memory, where there is no thread.
  status add(const void* stream, stream_watched& added);

  // A write is queued; it is over. Those that are queued are what a read that is queued later must not come before.
  void add_write(const stream_write& queued);
  void remove_write(const stream_write& over) noexcept;
  [[nodiscard]] bool is_written_to(const source::source& file, std::uint64_t offset, std::uint64_t length);

 private:
  using clock = std::chrono::steady_clock;
  using row = intrusive_list<stream_watched, &stream_watched::next_>;

  status start();
  void run();
  void take_arrivals() noexcept;
  bool look(bool at_all) noexcept;
  stream_watched* look_at_row(stream_watched* first, bool at_all, bool& moved) noexcept;
  void wait_for_arrivals();

  const std::chrono::microseconds spin_;
  std::mutex lock_;  // guards starting and stopping, and arrivals_
  row arrivals_;
  std::atomic<std::uint32_t> arrived_{0};  // changes with each
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  // The thread's: the first of each stream, which has those behind it. In the order in which they were queued, or about so where several
  // threads queue them.
  intrusive_list<stream_watched, &stream_watched::next_first_> firsts_;
  std::mutex writes_lock_;
  std::vector<stream_write> writes_;
};

}  // namespace penstock::core
