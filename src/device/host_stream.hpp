// Streams and events of the host device. A stream is a thread that runs its queued work in order. An event is reached when the stream on
// which it was last recorded reaches it. Both are shared: queued work keeps the event that it will set alive. Thread-safe.
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

// An error from queued work, and whether it has been reported.
struct host_failure {
  explicit host_failure(status error) : reason(std::move(error)) {}
  const status reason;
  std::atomic<bool> reported{false};
};

class host_event {
 public:
  // Announces a recording. The event is reached only when finish() is called with the returned number or a later one.
  std::uint64_t begin();
  void finish(std::uint64_t recording, std::shared_ptr<host_failure> failure);

  // An event that was never recorded is considered reached. Errors: those of the work before it.
  result<bool> reached();
  status wait();
  // For another stream: the number of announced recordings, and a wait until one of them is reached.
  std::uint64_t recordings();
  status wait_for(std::uint64_t recording);

 private:
  status outcome() const;

  std::mutex lock_;  // guards the members below
  std::condition_variable finished_;
  std::uint64_t begun_ = 0;
  std::uint64_t done_ = 0;
  std::shared_ptr<host_failure> failure_;
};

// An error is reported to the first event recorded after the failed work. It is also reported to synchronize(), unless that event has
// reported it before. Later work still runs.
class host_stream {
 public:
  // The maximum number of work items waiting in one stream.
  static constexpr std::size_t queue_limit = 65536;

  // Errors: out_of_memory (cannot start a thread).
  static result<std::shared_ptr<host_stream>> start();
  host_stream(const host_stream&) = delete;
  host_stream& operator=(const host_stream&) = delete;
  ~host_stream();  // finishes queued work

  // Queues work for the stream's thread, then records the event: both or neither. Does not block. Errors: out_of_memory (queue_limit),
  // closed.
  status push(std::function<status()> work, std::shared_ptr<host_event> then = nullptr);
  status record(std::shared_ptr<host_event> target);
  // Blocks until all work queued before the call is done.
  status synchronize();
  // Returns true if all work is done and none has failed.
  [[nodiscard]] bool idle();
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  // Rejects new work. Queued work still runs. Does not block.
  void close();
  // Ends the thread if there is no work. The next work starts it again.
  void rest();
  // Returns true if a closed stream has done all its work, so that its destructor does not block.
  [[nodiscard]] bool ended();

 private:
  struct item {
    std::function<status()> work;       // may be empty
    std::shared_ptr<host_event> event;  // set after the work; may be null
    std::uint64_t recording = 0;
  };

  host_stream();
  status push(item next);
  void start_thread();  // throws system_error
  void run();
  void perform(item& next);
  void work_on(const std::function<status()>& work);

  const std::uint64_t identity_;
  std::mutex lock_;  // guards the members down to has_left_
  std::condition_variable arrived_;
  std::condition_variable progressed_;
  std::deque<item> queue_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  std::shared_ptr<host_failure> for_synchronize_;
  bool closed_ = false;
  bool ended_ = false;
  bool resting_ = false;  // the thread must leave unless there is work
  bool has_left_ = false;
  std::shared_ptr<host_failure> for_event_;  // used only by the thread
  std::shared_ptr<host_failure> no_memory_;  // allocated in advance
  std::thread thread_;
};

}  // namespace penstock::device
