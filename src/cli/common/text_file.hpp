// Text that a command reads whole: lists of checksums, configuration files, reports. A free function; safe from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/status.hpp"

namespace penstock::cli {

// All of a file, a pipe or a FIFO; "-" is standard input. Blocks until the other end of a pipe has written all of it, or until an
// interrupt. Errors: cancelled after an interrupt; invalid_argument where there is more than most bytes; os errors.
result<std::string> read_text(const std::string& path, std::uint64_t most);

}  // namespace penstock::cli
