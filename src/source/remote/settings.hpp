// How patient a network is, and what it counts. Values.
#pragma once

#include <chrono>
#include <cstdint>

#include "sys/web.hpp"

namespace penstock::source::remote {

// Who counts what a network does. Called on its threads and those that open objects, some of them with its lock: blocks for nothing.
class network_listener {
 public:
  enum class event : std::uint8_t { request, retry, connection, redirect, unversioned, hedge, without_ranges };
  virtual void happened(event what) noexcept = 0;
  virtual void received(std::uint64_t bytes, bool tls) noexcept = 0;
  // From one time of the steady clock to another: a request is put off; a thread received over TLS as fast as its core can.
  virtual void put_off(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point until) noexcept = 0;
  virtual void tls_bound(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point until) noexcept = 0;

 protected:
  ~network_listener() = default;
};

struct network_settings {
  sys::web_door::options door{};
  unsigned threads = 0;             // that receive, at most
  unsigned most_connections = 128;  // to one server
  unsigned attempts = 5;            // at one piece, without a byte between them; and to connect
  std::chrono::milliseconds connect_within{5000};
  std::chrono::milliseconds answer_within{30000};  // of the first byte
  std::chrono::milliseconds stall_after{20000};    // in which fewer than so many bytes came
  std::uint64_t stall_bytes = 20 << 10;
  std::chrono::milliseconds first_pause{100};  // before a piece is asked for again, doubled each time; drawn from 0 up to it
  std::chrono::milliseconds most_pause{20000};
  std::chrono::milliseconds keep_idle{20000};   // connections
  std::chrono::milliseconds hedge_after{500};   // a piece that is late may be asked for on another connection
  network_listener* told = nullptr;             // outlives the network; null: nobody
  bool (*stop_requested)() noexcept = nullptr;  // see engine_options; asked every 100 ms by whatever waits
};

struct network_counts {
  std::uint64_t requests = 0;  // sent for pieces
  std::uint64_t retries = 0;
  std::uint64_t connections = 0;  // made
  std::uint64_t throttled = 0;    // answers that said so
  std::uint64_t hedges = 0;       // pieces that were asked for on another connection, since they were late
};

}  // namespace penstock::source::remote
