// How a piece's bytes move between its file and memory. The planner decides once; queues, paths and counters follow it.
#pragma once

#include <cstdint>

namespace penstock::path {

enum class way : std::uint8_t {
  cached,      // through the page cache: a write, or a read of bytes that are in it, as far as known
  past_cache,  // past the page cache
  filling,     // a read through the page cache of bytes that are not in it yet, by a few threads at a time
  pinned,      // a read from page cache pages that the user pinned (pinned_pages)
  far,         // a read that its remote source starts after the turnstile
};

// True if a disk or a server provides the bytes, so that a thread should sleep while it waits for them.
[[nodiscard]] constexpr bool is_slow(way by) noexcept { return by == way::past_cache || by == way::filling || by == way::far; }

}  // namespace penstock::path
