// What each command is made of: a function that declares it to CLI11, with its options, and puts the work itself into `chosen`, for main to
// run once the whole command line has been understood; and the options that commands share. One thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock::cli {

// What main returns.
inline constexpr int exit_success = 0;
inline constexpr int exit_failure = 1;  // the message is on stderr
inline constexpr int exit_usage = 2;
inline constexpr int exit_broken = 3;  // of check: what it was asked about has been found out, and some of it is broken

// The command that the user has chosen. add_NAME(CLI::App&, command&), in the command's own file, declares one: cli/shell/registry.cc lists
// them.
struct command {
  std::function<int()> run;  // returns the exit code
  // What stands at and behind the first "--", of a command that runs another program.
  std::vector<std::string> program;
};

// An option that takes a size: "4KiB". A malformed one is a usage error.
CLI::Option* add_size_option(CLI::App& app, const std::string& name, std::uint64_t& target, const std::string& description);
// --device NAME and --gpu N, which set name to "cuda:N"; it stays empty when neither is given. The second also takes "host".
void add_device_options(CLI::App& app, std::string& name);
void add_memory_options(CLI::App& app, std::string& name);

// What every command that prints figures has: --json, and -q or --quiet, for figures and errors without remarks and progress.
struct output_options {
  bool json = false;
  bool quiet = false;
};
void add_output_options(CLI::App& app, output_options& output);

// The engine of a command: with the options of the environment, changed by change, and with waits for servers that end at an interrupt.
// Errors: those of engine_options::from_environment() and engine::create().
result<engine> make_engine(const std::function<void(engine_options&)>& change = {});

// Prints "penstock: <message>" to stderr, but not of what an interrupt has cancelled. Returns exit_failure.
int fail(const status& error);

}  // namespace penstock::cli
