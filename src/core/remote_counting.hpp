// Records network and turnstile events in an engine's statistics. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "remote/net/settings.hpp"
#include "staging/slab_pool.hpp"
#include "stats/book.hpp"

namespace penstock::core {

class remote_counting final : public source::remote::network_listener, public staging::slab_waits {
 public:
  explicit remote_counting(stats::book& in) noexcept : book_(in) {}
  void happened(event what) noexcept override;
  void received(std::uint64_t bytes, bool tls) noexcept override;
  void put_off(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point until) noexcept override;
  void tls_bound(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point until) noexcept override;
  void waited(std::int64_t began_ns, std::int64_t ended_ns) noexcept override;

 private:
  stats::book& book_;
};

}  // namespace penstock::core
