// The list of commands. One thread.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/common/command.hpp"

namespace penstock::cli {

// Declares all commands in the groups that `penstock help` lists. app and chosen must stay valid until the chosen command has run.
void add_commands(CLI::App& app, command& chosen);

}  // namespace penstock::cli
