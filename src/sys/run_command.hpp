// Runs a program and returns what it prints: the program that the user has named for obtaining credentials. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "penstock/status.hpp"

namespace penstock::sys {

// Runs the command with `/bin/sh -c` in its own session, without input and with standard error discarded. Blocks until it has ended and
// closed its output. At the time limit the command and its children are killed. No error contains the output. Errors: timed_out; io (an
// exit status other than 0, or a signal); invalid_argument (more output than most_bytes); os.
result<std::string> run_command(const std::string& command, std::size_t most_bytes, std::chrono::milliseconds timeout);

}  // namespace penstock::sys
