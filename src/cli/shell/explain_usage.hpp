// What the user is told of a command line that was not understood. One thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace penstock::cli {

// That the program has no such command, and the one that was probably meant.
std::string unknown_command(const CLI::App& app, const std::string& word);

// Prints help or version to stdout where they were asked for, else what is wrong to stderr. Returns the exit code.
int explain_usage(const CLI::App& app, const CLI::ParseError& error);

}  // namespace penstock::cli
