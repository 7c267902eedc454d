// Runs one operation until it completes or the user interrupts it. One thread.
#pragma once

#include <cstdint>

#include "cli/common/progress.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

// Waits for the operation and updates the bar, starting at first_byte. Cancels the operation after an interrupt.
io_result finish(operation work, const engine& owner, progress_bar& bar, std::uint64_t first_byte);

}  // namespace penstock::cli
