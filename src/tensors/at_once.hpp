// Runs steps that wait for servers, several of them at once.
#pragma once

#include <cstddef>
#include <functional>

#include "penstock/status.hpp"

namespace penstock::tensors {

inline constexpr std::size_t most_steps_at_once = 16;

using stop_function = std::function<bool()>;

// Runs step(0) to step(count - 1) on the calling thread and up to 15 others, which end before it returns. If threads cannot be started, the
// others do the work. Blocks. A step must not throw, except that running out of memory counts as its error. It gets a function that
// returns true once its work is no longer needed: stop_requested() has returned true, or a step with a lower number has failed.
// stop_requested: may be empty; called about every 50 ms, on the calling thread only. Returns the error of the failed step with the lowest
// number. Steps with higher numbers may then be missing, those with lower numbers are complete.
status run_at_once(std::size_t count, const stop_function& stop_requested,
                   const std::function<status(std::size_t number, const stop_function& stop)>& step);

}  // namespace penstock::tensors
