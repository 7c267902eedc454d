// How the bytes of a piece pass between its file and memory. The planner chooses the way once; queues, paths and counters follow it.
#pragma once

#include <cstdint>

namespace penstock::path {

enum class way : std::uint8_t {
  cached,      // through the page cache, which holds the bytes as far as known, or takes those of a write
  past_cache,  // past the page cache
  filling,     // a read through the page cache, which does not hold the bytes yet, by few threads at a time
  pinned,      // a read from pages of the page cache that the user pinned (pinned_pages)
  far,         // a read that its remote source starts, once it has passed the turnstile
};

// Whether the thread that waits for the bytes should sleep, because a disk or a server provides them.
[[nodiscard]] constexpr bool is_slow(way by) noexcept { return by == way::past_cache || by == way::filling || by == way::far; }

}  // namespace penstock::path
