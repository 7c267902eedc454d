// Streams and events of the host device. A stream is a thread that does what it was given, one after the other; an event is reached when
// the stream on which it was last recorded gets there. Both are shared: work that is queued keeps the event alive that it will set.
// Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "penstock/status.hpp"

namespace penstock::device {

// An error of queued work, and whether anybody has been told.
struct host_failure {
  explicit host_failure(status error) : reason(std::move(error)) {}
  const status reason;
  std::atomic<bool> reported{false};
};

class host_event {
 public:
  // Announces a recording; the event is not reached until finish() was called with the number returned, or a later one.
  std::uint64_t begin();
  void finish(std::uint64_t recording, std::shared_ptr<host_failure> failure);

  // An event that was never recorded is reached. Errors: those of the work before it.
  result<bool> reached();
  status wait();
  // For another stream: how often a recording was announced, and to block until that one is reached.
  std::uint64_t recordings();
  status wait_for(std::uint64_t recording);

 private:
  status outcome() const;

  std::mutex lock_;  // guards what follows
  std::condition_variable finished_;
  std::uint64_t begun_ = 0;
  std::uint64_t done_ = 0;
  std::shared_ptr<host_failure> failure_;
};

// An error of the work goes to the first event recorded after it, and to synchronize() unless that event's user has been told before.
// Work after it is done all the same.
class host_stream {
 public:
  // Work that waits in one stream.
  static constexpr std::size_t queue_limit = 65536;

  // Errors: out_of_memory (no thread can be started).
  static result<std::shared_ptr<host_stream>> start();
  host_stream(const host_stream&) = delete;
  host_stream& operator=(const host_stream&) = delete;
  ~host_stream();  // finishes what is queued

  // work is done on the stream's thread, and the event is recorded behind it: both or neither. Does not block. Errors: out_of_memory
  // (queue_limit), closed.
  status push(std::function<status()> work, std::shared_ptr<host_event> then = nullptr);
  status record(std::shared_ptr<host_event> target);
  // Blocks until all that was queued before has been done.
  status synchronize();
  // All has been done, and well.
  [[nodiscard]] bool idle();
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  // Takes nothing new; what is queued is still done. Does not block.
  void close();
  // True when a closed stream has done everything, so that destroying it does not block.
  [[nodiscard]] bool ended();

 private:
  struct item {
    std::function<status()> work;       // may be empty
    std::shared_ptr<host_event> event;  // to set after the work; may be null
    std::uint64_t recording = 0;
  };

  host_stream();
  status push(item next);
  void run();
  void perform(item& next);
  void work_on(const std::function<status()>& work);

  const std::uint64_t identity_;
  std::mutex lock_;  // guards what follows, up to ended_
  std::condition_variable arrived_;
  std::condition_variable progressed_;
  std::deque<item> queue_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  std::shared_ptr<host_failure> for_synchronize_;
  bool closed_ = false;
  bool ended_ = false;
  std::shared_ptr<host_failure> for_event_;  // the thread's own
  std::shared_ptr<host_failure> no_memory_;  // made in advance
  std::thread thread_;
};

}  // namespace penstock::device
