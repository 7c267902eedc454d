// Transfers the pieces of remote objects: owns the connections to servers and the few threads that serve them, and retries when a server
// fails. Each engine has one. It starts no threads before the first request. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "penstock/status.hpp"
#include "remote/net/fetch.hpp"
#include "remote/net/line.hpp"
#include "remote/net/origin.hpp"
#include "remote/net/patience.hpp"
#include "remote/net/settings.hpp"
#include "remote/net/url.hpp"
#include "staging/lanes.hpp"
#include "sys/fork_guard.hpp"
#include "sys/web.hpp"

namespace penstock::source::remote {

class reactor;

class network final : public line_owner {
 public:
  using clock = std::chrono::steady_clock;

  static std::shared_ptr<network> make(const network_settings& with);
  network(const network&) = delete;
  network& operator=(const network&) = delete;
  ~network();  // no fetch may be in flight

  // Sends a short request. It ends early if `stopped`, which may be empty, returns true. Errors: those of the door.
  result<sys::web_answer> exchange(const sys::web_request& what, const std::function<bool()>& stopped = {});
  // Counts an event.
  void tell_of(network_listener::event what) noexcept;
  // Reports a retry and waits before it. Returns false if the engine is ending.
  [[nodiscard]] bool pause(const patience& how, remote_retry what, std::chrono::milliseconds asked_for);
  [[nodiscard]] result<std::string> library_version();
  std::shared_ptr<origin> origin_of(const url& at);
  // Reports how long the server at an address took to respond to a short request.
  void meet(const url& at, clock::duration latency);
  [[nodiscard]] network_counts counts() const noexcept;
  [[nodiscard]] bool forked() const noexcept { return fork_.forked(); }

  // Returns true if the program was asked to stop.
  [[nodiscard]] bool stopped() const noexcept { return stop_.stopped(); }

  // Runs a function that may block on one of the network's own threads. Returns false if there is no thread. The network's destructor waits
  // for the function.
  [[nodiscard]] bool aside(std::function<void()> what);
  // Waits until nothing is in flight, then closes all connections and ends the threads. The next fetch starts them again. Error: timed_out.
  status rest(clock::time_point until);

  // Starts a fetch. Does not block. The fetch may have ended when this call returns.
  void begin(fetch& what) noexcept;
  // Cancels a fetch. Returns true if it has ended without notifying its owner; false if the owner was or will be notified. Does not block.
  [[nodiscard]] bool cancel(fetch& what) noexcept;

  // --- line_owner
  fetch* ended(line& on, fetch& what, verdict& how, bool line_goes_on) noexcept override;
  [[nodiscard]] fetch* next_for(line& one) noexcept override;
  [[nodiscard]] bool is_late(line& on, const fetch& what, clock::duration time) noexcept override;
  void gone(line& one) noexcept override;
  void sent() noexcept override;
  void look_at(const std::shared_ptr<origin>& of) noexcept override;
  void received(const line& over, std::uint64_t bytes) noexcept override;
  void tls_bound(clock::time_point from, clock::time_point until) noexcept override;
  [[nodiscard]] bool is_unwanted(const fetch& what) const noexcept override {
    return what.cancelled.load() || (!what.despite_stop && stop_.stopped());
  }
  [[nodiscard]] const network_settings& settings() const noexcept override { return settings_; }
  [[nodiscard]] const patience& patience_with(const fetch& what) const noexcept override { return what.how == nullptr ? own_ : *what.how; }
  clock::time_point queue_due(clock::time_point now) noexcept override;

 private:
  struct dial;
  struct errand;
  static void tell(fetch& what, const verdict& how) noexcept { line_owner::tell(what, how); }
  explicit network(const network_settings& with);
  result<std::shared_ptr<sys::web_door>> door();
  // --- called with lock_ held
  [[nodiscard]] std::size_t in_flight() const noexcept;
  void queue(fetch& what, bool first) noexcept;
  void feed_idle(origin& of) noexcept;
  fetch* take(line& one) noexcept;
  static void drop_idle(origin& of) noexcept;
  void ask_again(fetch& what, verdict& how, origin& asked) noexcept;
  [[nodiscard]] bool note_refusal(fetch& what, const verdict& how, origin& asked) noexcept;
  void put_off(fetch& what, verdict& how) noexcept;
  void wait(fetch& what, verdict& how) noexcept;
  [[nodiscard]] unsigned dials_wanted(origin& to) noexcept;  // returns how many to start
  [[nodiscard]] const sys::web_stop& stop_of_dials(origin& to) noexcept;
  result<reactor*> reactor_for_one_more();
  // --- called without lock_
  void start_dials(const std::shared_ptr<origin>& to, unsigned count) noexcept;
  void dialled(const std::shared_ptr<origin>& to, result<std::unique_ptr<sys::web_connection>> made) noexcept;
  [[nodiscard]] status adopt(const std::shared_ptr<origin>& to, std::unique_ptr<sys::web_connection> made);

  const network_settings settings_;
  const std::size_t most_in_all_;  // connections to all servers
  const patience own_;
  const sys::fork_guard fork_;
  std::mutex opening_;  // guards door_
  std::shared_ptr<sys::web_door> door_;
  sys::web_stop stop_;
  sys::web_stop end_;                                       // set when the engine ends
  std::mutex lock_;                                         // guards the members below, and the members of origins marked accordingly
  std::map<std::string, std::shared_ptr<origin>> origins_;  // kept, because they have learned the best number of connections
  fetch_list waiting_;                                      // waiting for a retry; unordered
  std::vector<std::unique_ptr<reactor>> reactors_;
  std::size_t in_all_ = 0;  // connections that are open or being made
  std::minstd_rand drawn_;
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> retries_{0};
  std::atomic<std::uint64_t> connections_{0};
  std::atomic<std::uint64_t> throttled_{0};
  std::atomic<std::uint64_t> hedges_{0};
  staging::work_list dials_;
  staging::lanes dialers_;
};

}  // namespace penstock::source::remote
