// Timeouts, retry rules and counters of a network. Values.
#pragma once

#include <chrono>
#include <cstdint>

#include "sys/web.hpp"

namespace penstock::source::remote {

// Receives a network's events. Called on its threads and on those that open objects, sometimes with its lock held, so it must not block.
class network_listener {
 public:
  enum class event : std::uint8_t { request, retry, connection, redirect, unversioned, hedge, without_ranges };
  virtual void happened(event what) noexcept = 0;
  virtual void received(std::uint64_t bytes, bool tls) noexcept = 0;
  // Times are on the steady clock. put_off(): a request was delayed. tls_bound(): receiving over TLS used a thread's whole core.
  virtual void put_off(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point until) noexcept = 0;
  virtual void tls_bound(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point until) noexcept = 0;

 protected:
  ~network_listener() = default;
};

struct network_settings {
  sys::web_door::options door{};
  unsigned threads = 0;             // limit on receiving threads
  unsigned most_connections = 128;  // per server
  unsigned attempts = 5;            // per piece until a byte is received, and for connecting
  std::chrono::milliseconds connect_within{5000};
  std::chrono::milliseconds answer_within{30000};  // for the first byte
  std::chrono::milliseconds stall_after{20000};    // at least stall_bytes must arrive within this time
  std::uint64_t stall_bytes = 20 << 10;
  std::chrono::milliseconds first_pause{100};  // before a retry, doubled each time; the actual pause is random, from 0 to this
  std::chrono::milliseconds most_pause{20000};
  std::chrono::milliseconds keep_idle{20000};   // for connections
  std::chrono::milliseconds hedge_after{500};   // a piece this late may be requested on another connection
  network_listener* told = nullptr;             // must outlive the network; may be null
  bool (*stop_requested)() noexcept = nullptr;  // see engine_options; all waits poll it every 100 ms
};

struct network_counts {
  std::uint64_t requests = 0;  // for pieces
  std::uint64_t retries = 0;
  std::uint64_t connections = 0;  // opened
  std::uint64_t throttled = 0;    // responses that reported throttling
  std::uint64_t hedges = 0;       // pieces requested on another connection because they were late
};

}  // namespace penstock::source::remote
