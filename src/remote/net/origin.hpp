// A server that stores objects: its connections, the fetches that wait for them, and the best number of connections. The network's lock
// guards the members that the network uses.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "remote/net/fetch.hpp"
#include "remote/net/pace.hpp"
#include "remote/net/recent_times.hpp"
#include "remote/net/settings.hpp"
#include "remote/net/url.hpp"
#include "source/turnstile.hpp"
#include "staging/lanes.hpp"

namespace penstock::source::remote {

class line;

// One server: scheme, host and port.
class origin final {
 public:
  origin(url address, const network_settings& with);
  origin(const origin&) = delete;
  origin& operator=(const origin&) = delete;
  ~origin();
  [[nodiscard]] const url& place() const noexcept { return at_; }  // contains the path of the first request
  // address(): "https://host:port". host(): "host:port", for messages.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  // Returns the best number of concurrent fills: those in flight on connections, and some that wait for one.
  [[nodiscard]] unsigned fills_wanted() const noexcept;
  [[nodiscard]] unsigned connections_wanted() const noexcept { return pace_.wanted(); }
  // Returns the queue for the fills of all objects on this server; the first call creates it.
  std::shared_ptr<turnstile> turns(staging::lanes& by, turnstile::share& of, const std::shared_ptr<origin>& self);
  // Starts fills that wait in this queue, after the number of connections has risen. The caller must not hold the network's lock.
  void start_fills() noexcept;

  // --- for lines, from any thread
  void arrived(std::uint64_t bytes) noexcept { arrived_.fetch_add(bytes, std::memory_order_relaxed); }
  void responded(std::chrono::nanoseconds latency) noexcept;
  // Returns true if it is time to measure the throughput.
  [[nodiscard]] bool is_look_due(std::chrono::steady_clock::time_point now) noexcept;

 private:
  friend class network;
  void carries_one_more() noexcept {
    if (carried_++ == 0) pace_.resumes(responses_.load(std::memory_order_relaxed));
  }
  [[nodiscard]] pace::progress progress() const noexcept;
  // Connecting may take long, and a server that accepts no connection must not receive many attempts at once.
  [[nodiscard]] unsigned dials_at_once() const noexcept { return std::min(most_dials, first_dials + 2 * lines_); }
  static constexpr double most_tokens = 500;
  static constexpr unsigned first_dials = 4;  // concurrent, so that one without a response does not block the others
  static constexpr unsigned most_dials = 24;  // fewer than the network's threads, which also serve other servers
  const url at_;
  const std::string address_;
  const std::string host_;
  std::mutex turns_lock_;  // guards turns_
  std::weak_ptr<turnstile> turns_;
  std::atomic<std::uint64_t> arrived_{0};  // bytes
  std::atomic<std::uint64_t> responses_{0};
  std::atomic<std::int64_t> latency_ns_{0};   // smoothed
  std::atomic<std::int64_t> look_due_ns_{0};  // on the steady clock
  // --- guarded by the network's lock
  fetch_list queue_;
  std::vector<line*> idle_;  // most recently used last
  unsigned lines_ = 0;
  unsigned dialing_ = 0;
  unsigned carried_ = 0;  // fetches in flight on connections
  double tokens_;         // limit retries, so that they do not multiply during an outage
  pace pace_;
  recent_times times_;  // times of whole pieces
  double hedges_ = 1;   // hedged requests allowed now: one per fifty pieces
};

}  // namespace penstock::source::remote
