// Reads a complete text: a list of checksums, a configuration file, a report. A free function; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/status.hpp"

namespace penstock::cli {

// Reads all of a file, a pipe or a FIFO; "-" is standard input. Blocks until the writers of a pipe have closed it, or until an interrupt.
// Errors: cancelled after an interrupt; invalid_argument if the input is larger than `most` bytes; os errors.
result<std::string> read_text(const std::string& path, std::uint64_t most);

}  // namespace penstock::cli
