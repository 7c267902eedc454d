// A thread that serves connections to servers by waiting for events on all of them. It sleeps while there is nothing to do.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/intrusive_list.hpp"
#include "penstock/status.hpp"
#include "remote/net/line.hpp"
#include "sys/peer.hpp"

namespace penstock::source::remote {

class reactor final {
 public:
  // first: this reactor also handles fetches that wait for a retry. Errors: those of the poller; out_of_memory (no thread could be
  // started).
  static result<std::unique_ptr<reactor>> make(line_owner& with, bool first);
  reactor(const reactor&) = delete;
  reactor& operator=(const reactor&) = delete;
  ~reactor();  // destroys its lines

  // These can be called from any thread.
  void adopt(std::unique_ptr<line> made);  // throws bad_alloc
  void give(line& one) noexcept;           // reports that the line was assigned a fetch
  void take_back(line& one) noexcept;      // undoes give(); only on the reactor's own thread
  void look() noexcept;                    // checks for cancelled and waiting fetches
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
  std::unordered_map<std::uint64_t, std::unique_ptr<line>> lines_;  // used only by the thread
  std::uint64_t next_token_ = 1;                                    // used only by the thread
  clock::time_point measured_{};                                    // used only by the thread: when it last measured its CPU time
  std::int64_t measured_cpu_ns_ = 0;                                // used only by the thread: its CPU time at that measurement
  std::atomic<unsigned> count_{0};
  std::atomic<bool> look_{false};
  std::atomic<bool> stopping_{false};
  std::mutex lock_;  // guards the members below
  std::vector<std::unique_ptr<line>> new_;
  intrusive_list<line, &line::next_given> given_;
  std::thread thread_;
};

}  // namespace penstock::source::remote
