// A thread that serves connections to servers: waits for whatever comes over any of them. It sleeps while nothing is under way.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/intrusive_list.hpp"
#include "penstock/status.hpp"
#include "source/remote/line.hpp"
#include "sys/peer.hpp"

namespace penstock::source::remote {

class reactor final {
 public:
  // first: it looks after what waits to be asked for again. Errors: of the poller, out_of_memory (no thread).
  static result<std::unique_ptr<reactor>> make(line_owner& with, bool first);
  reactor(const reactor&) = delete;
  reactor& operator=(const reactor&) = delete;
  ~reactor();  // its lines go

  // From any thread.
  void adopt(std::unique_ptr<line> made);  // throws bad_alloc
  void give(line& one) noexcept;           // it was given a fetch
  void take_back(line& one) noexcept;      // not any more: on the reactor's own thread
  void look() noexcept;                    // at what was cancelled, and at what waits
  [[nodiscard]] unsigned lines() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  using clock = std::chrono::steady_clock;
  reactor(line_owner& with, bool first, std::unique_ptr<sys::poller> by) : owner_(with), first_(first), poller_(std::move(by)) {}
  void loop() noexcept;
  void take_new() noexcept;
  void begin(line& one) noexcept;
  void tell(const sys::socket_event& event) noexcept;
  void keep_or_drop(line& one, bool goes_on) noexcept;
  void look_at_all(clock::time_point now) noexcept;
  void look_at_itself(clock::time_point now) noexcept;

  line_owner& owner_;
  const bool first_;
  const std::unique_ptr<sys::poller> poller_;
  std::unordered_map<std::uint64_t, std::unique_ptr<line>> lines_;  // the thread's
  std::uint64_t next_token_ = 1;                                    // likewise
  clock::time_point measured_{};                                    // likewise: when it last looked at its own CPU time
  std::int64_t measured_cpu_ns_ = 0;                                // likewise: that it had used then
  std::atomic<unsigned> count_{0};
  std::atomic<bool> look_{false};
  std::atomic<bool> stopping_{false};
  std::mutex lock_;  // guards what follows
  std::vector<std::unique_ptr<line>> new_;
  intrusive_list<line, &line::next_given> given_;
  std::thread thread_;
};

}  // namespace penstock::source::remote
