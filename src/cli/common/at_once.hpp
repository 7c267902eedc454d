// Runs independent steps on several threads of a command.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace penstock::cli {

// Returns how many steps may run at once if each keeps this many bytes in memory: at most `most`, and together at most a quarter of the
// memory still available to this process or its container.
std::size_t steps_at_once(std::uint64_t bytes_each, std::size_t most);

// Calls step(0) to step(count - 1), each once, on up to `threads` threads, and waits for them. Skips the remaining steps after an
// interrupt or an exception; rethrows the first exception.
void run_at_once(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& step);

}  // namespace penstock::cli
