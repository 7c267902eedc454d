// Chooses whether to read uncached bytes through the page cache, so that the kernel keeps them, or to bypass it. Pure.
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
  bool shared_memory = false;       // the device shares the host's memory, and the caller set no cache option
  bool lent_past_cache = false;     // the file was adopted with an O_DIRECT descriptor
  std::uint64_t file_bytes = 0;     // its size
  std::uint64_t request_bytes = 0;  // size of the whole request
  bool in_order = false;            // the request starts near the end of the previous one in this file
  std::optional<sys::memory_state> memory{};
  cold_speeds::verdict speeds = cold_speeds::verdict::keep;
  // How promptly the file system's server answers; prompt if it has no server.
  staging::answer_times::verdict answers = staging::answer_times::verdict::prompt;
};

// Shorter out-of-order requests select parts of a file that may never be requested again.
inline constexpr std::uint64_t least_kept_request_bytes = std::uint64_t{4} << 20;
// With the whole file in the page cache, at least 1/N of all memory must stay free.
inline constexpr std::uint64_t spared_share_of_memory = 8;

cold_way choose_cold_way(const cache_question& asked) noexcept;

}  // namespace penstock::core
