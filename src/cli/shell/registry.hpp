// The commands there are. One thread.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/common/command.hpp"

namespace penstock::cli {

// Declares all of them, by what they are for, as `penstock help` lists them. Both must stay valid until the chosen one has run.
void add_commands(CLI::App& app, command& chosen);

}  // namespace penstock::cli
