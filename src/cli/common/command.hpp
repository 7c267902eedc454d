// The parts of a command: a function declares it and its options to CLI11 and stores what to run in `chosen`; main runs it once the whole
// command line is parsed. Also the options shared by several commands. One thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock::cli {

// Exit codes of main.
inline constexpr int exit_success = 0;
inline constexpr int exit_failure = 1;  // after a message on stderr
inline constexpr int exit_usage = 2;
inline constexpr int exit_broken = 3;  // check: the check completed and found something broken

// The command that the user chose. Each command is declared by a function add_NAME(CLI::App&, command&) in its own file;
// cli/shell/registry.cc lists them.
struct command {
  std::function<int()> run;  // returns the exit code
  // For commands that run another program: the first "--" and all words after it.
  std::vector<std::string> program;
};

// Adds an option that takes a size, such as "4KiB". A malformed size is a usage error.
CLI::Option* add_size_option(CLI::App& app, const std::string& name, std::uint64_t& target, const std::string& description);
// Adds --device NAME and --gpu N. --gpu N sets name to "cuda:N"; name stays empty if neither is given. The second function also accepts
// "host".
void add_device_options(CLI::App& app, std::string& name);
void add_memory_options(CLI::App& app, std::string& name);

// Options of all commands that print figures: --json, and -q or --quiet, which omits remarks and progress.
struct output_options {
  bool json = false;
  bool quiet = false;
};
void add_output_options(CLI::App& app, output_options& output);

// Creates a command's engine from the options in the environment, modified by `change`. An interrupt cancels its waits for servers. Errors:
// those of engine_options::from_environment() and engine::create().
result<engine> make_engine(const std::function<void(engine_options&)>& change = {});

// Prints "penstock: <message>" on stderr, unless the error is due to an interrupt. Returns exit_failure.
int fail(const status& error);

}  // namespace penstock::cli
