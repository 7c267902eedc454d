// Runs a program and returns its output. Used for the program that a user has configured to obtain credentials. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "penstock/status.hpp"

namespace penstock::sys {

// Runs the command with `/bin/sh -c` in its own session, without input, and discards its standard error. Blocks until it has exited and
// closed its output. On timeout, the command and its children are killed. Error messages never contain the output. Errors: timed_out; io (a
// nonzero exit status, or a signal); invalid_argument (more output than most_bytes); os.
result<std::string> run_command(const std::string& command, std::size_t most_bytes, std::chrono::milliseconds timeout);

}  // namespace penstock::sys
