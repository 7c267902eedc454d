// Messages about an invalid command line. One thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace penstock::cli {

// Returns a message that the command does not exist, with the closest existing one.
std::string unknown_command(const CLI::App& app, const std::string& word);

// Prints help or the version on stdout if the user asked for them, otherwise the error on stderr. Returns the exit code.
int explain_usage(const CLI::App& app, const CLI::ParseError& error);

}  // namespace penstock::cli
