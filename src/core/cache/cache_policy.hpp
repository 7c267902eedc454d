// Which way bytes are read that are not in the page cache: through it, so that it keeps them, or past it. Pure.
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
  bool shared_memory = false;       // the device that it is read into has no memory but the host's, and nobody asked for more
  bool lent_past_cache = false;     // the file was adopted by an O_DIRECT descriptor
  std::uint64_t file_bytes = 0;     // its size
  std::uint64_t request_bytes = 0;  // that are asked for, in all
  bool in_order = false;            // the request goes on about where the one before it ended, in the same file
  std::optional<sys::memory_state> memory{};
  cold_speeds::verdict speeds = cold_speeds::verdict::keep;
  // Of a file system with a server; prompt where there is none.
  staging::answer_times::verdict answers = staging::answer_times::verdict::prompt;
};

// A request of less, anywhere in a file, is one of those that pick what they need, of which nobody knows whether they come again.
inline constexpr std::uint64_t least_kept_request_bytes = std::uint64_t{4} << 20;
// Of all memory, what has to be left when the file is in the page cache.
inline constexpr std::uint64_t spared_share_of_memory = 8;

cold_way choose_cold_way(const cache_question& asked) noexcept;

}  // namespace penstock::core
