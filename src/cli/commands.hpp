// The subcommands. Each add_… function declares one to CLI11, with its options; the work itself is put into `chosen`, for main to run
// once the whole command line has been understood. One thread.
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

using command = std::function<int()>;

void add_demo(CLI::App& app, command& chosen);
void add_read(CLI::App& app, command& chosen);
void add_write(CLI::App& app, command& chosen);
void add_check(CLI::App& app, command& chosen);
void add_devices(CLI::App& app, command& chosen);
void add_bench(CLI::App& app, command& chosen);
void add_pipe_bench(CLI::App& app, command& chosen);
void add_io(CLI::App& app, command& chosen);
void add_verify(CLI::App& app, command& chosen);
void add_cp(CLI::App& app, command& chosen);
void add_load(CLI::App& app, command& chosen);
void add_inspect(CLI::App& app, command& chosen);
void add_convert(CLI::App& app, command& chosen);
void add_completion(CLI::App& app, command& chosen);
void add_stats(CLI::App& app, command& chosen);
void add_top(CLI::App& app, command& chosen);
void add_help(CLI::App& app, command& chosen);
void add_run(CLI::App& app, command& chosen, const std::vector<std::string>& program);

// Takes what stands at and behind the first "--" of `penstock run` off the command line, for add_run: it is another program's, and CLI11
// would read options and lists into it. Empty for the other subcommands, which keep theirs.
std::vector<std::string> take_program(int& argc, char** argv);

// --- what they share

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

// Prints "penstock: <message>" to stderr. Returns exit_failure.
int fail(const status& error);

}  // namespace penstock::cli
