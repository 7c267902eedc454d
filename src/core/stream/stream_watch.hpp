// Observes the progress of streams: one thread reads the words that streams write into their requests' blocks. It polls continuously while
// the streams make progress, and every 50 us while they do not. It does not use host functions on the stream, because each would cost the
// stream 30 us. It never calls the device. One per engine.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/intrusive_list.hpp"
#include "core/stream/stream_block.hpp"
#include "penstock/status.hpp"
#include "source/source.hpp"

namespace penstock::core {

// A request on a stream.
class stream_watched {
 public:
  enum class seen : std::uint8_t { nothing, moved, passed, over };
  // Handles the progress of the stream. Returns `passed` while the request is not complete although the stream has passed it, and `over`
  // once the stream has passed the complete request, or never will. After that, only end() is called.
  virtual seen look() noexcept = 0;
  virtual void end() noexcept = 0;

 protected:
  ~stream_watched() = default;

 private:
  friend class stream_watch;
  const void* stream_ = nullptr;
  stream_watched* next_ = nullptr;                                 // queued later on the same stream, once the thread has seen it
  intrusive_list<stream_watched, &stream_watched::next_> behind_;  // used by the first request of a stream
  stream_watched* next_first_ = nullptr;                           // first request of another stream
};

// A write to a file that is queued on a stream.
struct stream_write {
  const source::source* to = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  const stream_block* passes_early = nullptr;  // its block, if the stream does not wait for the write to complete
};

class stream_watch {
 public:
  // spin: how long to poll without sleeping after progress; zero on few cores.
  explicit stream_watch(std::chrono::microseconds spin) : spin_(spin) {}
  stream_watch(const stream_watch&) = delete;
  stream_watch& operator=(const stream_watch&) = delete;
  ~stream_watch() { rest(); }  // ends the remaining requests, which were given up
  // Does the same. add() starts the thread again.
  void rest();

  // Starts observing a request. Error: out_of_memory, if the thread cannot start.
  status add(const void* stream, stream_watched& added);

  // Add a write when it is queued, and remove it when it is over. A read queued later must not run before the writes that it overlaps.
  void add_write(const stream_write& queued);
  void remove_write(const stream_write& over) noexcept;
  [[nodiscard]] bool is_written_to(const source::source& file, std::uint64_t offset, std::uint64_t length);
  // Returns true if such a write is in progress that its stream has passed.
  [[nodiscard]] bool is_being_written_to(const source::source& file, std::uint64_t offset, std::uint64_t length);

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
  std::mutex lock_;  // guards start and stop, and arrivals_
  row arrivals_;
  std::atomic<std::uint32_t> arrived_{0};  // changes with each arrival
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  // Used only by the thread: the first request of each stream, which links to the later ones. In the order in which they were queued, or
  // approximately so if several threads queue.
  intrusive_list<stream_watched, &stream_watched::next_first_> firsts_;
  std::mutex writes_lock_;
  std::vector<stream_write> writes_;
};

}  // namespace penstock::core
