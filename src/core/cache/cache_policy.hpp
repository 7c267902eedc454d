// Chooses how to read bytes that are not in the page cache: through it, so that the kernel keeps them, or past it. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "core/cache/cold_speeds.hpp"
#include "core/planner.hpp"
#include "penstock/options.hpp"
#include "staging/answer_times.hpp"
#include "sys/memory_state.hpp"

namespace penstock::core {

struct cache_question {
  cache_use asked = cache_use::automatic;
  bool shared_memory = false;       // the device has no memory of its own, and the caller set no cache option
  bool lent_past_cache = false;     // the file was adopted with an O_DIRECT descriptor
  std::uint64_t file_bytes = 0;     // its size
  std::uint64_t request_bytes = 0;  // of the whole request
  bool in_order = false;            // the request begins about where the previous one in this file ended
  std::optional<sys::memory_state> memory{};
  cold_speeds::verdict speeds = cold_speeds::verdict::keep;
  // How promptly the server of the file system answers; prompt if it has no server.
  staging::answer_times::verdict answers = staging::answer_times::verdict::prompt;
};

// Shorter requests out of order select parts of a file; nobody knows whether they will be repeated.
inline constexpr std::uint64_t least_kept_request_bytes = std::uint64_t{4} << 20;
// One part in this many of all memory must stay free with the whole file in the page cache.
inline constexpr std::uint64_t spared_share_of_memory = 8;

cold_way choose_cold_way(const cache_question& asked) noexcept;

}  // namespace penstock::core
