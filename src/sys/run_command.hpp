// Runs a program for what it prints: a program that hands out credentials, which its user named. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "penstock/status.hpp"

namespace penstock::sys {

// By `/bin/sh -c`, in a session of its own, with nothing to read and what it says of errors dropped. Blocks until it has ended and closed
// its output; at the time limit it is killed, with whom it started. No error has what it printed. Errors: timed_out; io (it ended with
// another status than 0, or by a signal); invalid_argument (it prints more than most_bytes); os.
result<std::string> run_command(const std::string& command, std::size_t most_bytes, std::chrono::milliseconds timeout);

}  // namespace penstock::sys
