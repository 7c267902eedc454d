// Running one operation to its end, or to the user's interrupt. One thread.
#pragma once

#include <cstdint>

#include "cli/common/progress.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

// Waits for the operation, moves the bar on from first_byte, and cancels the operation upon an interrupt.
io_result finish(operation work, const engine& owner, progress_bar& bar, std::uint64_t first_byte);

}  // namespace penstock::cli
