// The command line `penstock`. It translates arguments; the library does the work.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/shell/explain_usage.hpp"
#include "cli/shell/registry.hpp"

namespace {

using namespace penstock::cli;

// For a command that runs another program, removes and returns the first "--" and all words after it. They belong to that program, but
// CLI11 would parse options and lists in them. Returns nothing for other commands.
std::vector<std::string> take_program(const CLI::App& app, int& argc, char** argv) {
  if (argc < 2) return {};
  const std::string name = argv[1];
  const auto runs_program = [&name](const CLI::App* sub) { return sub->get_name() == name && sub->get_prefix_command(); };
  if (app.get_subcommands(runs_program).empty()) return {};
  char** const end = argv + argc;
  char** const separator = std::find_if(argv + 2, end, [](std::string_view word) { return word == "--"; });
  argc = static_cast<int>(separator - argv);
  return {separator, end};
}

// Converts file:///PATH to a path, for all commands.
std::vector<std::string> plain_words(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& each : words) each = penstock::file_path(each);
  std::reverse(words.begin(), words.end());  // the order that CLI11 expects
  return words;
}

int run(int argc, char** argv) {
  CLI::App app{"Moves bytes between files, GPU memory and host memory at the speed of the hardware", "penstock"};
  app.set_version_flag("-V,--version", fmt::format("penstock {}", penstock::version()));
  app.require_subcommand(1);
  command chosen;
  add_commands(app, chosen);
  chosen.program = take_program(app, argc, argv);
  try {
    app.parse(plain_words(argc, argv));
  } catch (const CLI::ParseError& error) {
    if (std::find(argv, argv + argc, std::string_view("--json")) != argv + argc) promise_json();
    return explain_usage(app, error);
  }
  return chosen.run();
}

// Opens /dev/null for standard streams that are closed, so that no file gets their number and receives our output. Opens it in the opposite
// direction, so that using the stream fails as if it were closed. In programs that `run` starts, the streams are closed.
void keep_standard_numbers() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // open(2) uses the lowest free number, which is fd.
    static_cast<void>(::open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC));
  }
}

extern "C" void go_on(int /*signal_number*/) {}

// Makes a write beyond the file size limit fail with EFBIG instead of killing the command without a message. Uses a handler, because a
// program that `run` starts would inherit an ignored signal.
void survive_file_size_limit() {
  struct sigaction inherited {};
  ::sigaction(SIGXFSZ, nullptr, &inherited);
  if (inherited.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  action.sa_handler = go_on;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGXFSZ, &action, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_numbers();
  survive_file_size_limit();
  // Flush each line immediately, even to a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  catch_interrupts();
  int exit_code = exit_failure;
  try {
    exit_code = run(argc, argv);
  } catch (const penstock::output_failure& error) {
    complain("penstock: {}\n", error.what());
    return exit_failure;
  } catch (const std::exception& error) {
    note_failure(error.what());
    complain("penstock: {}\n", error.what());
  }
  if (interrupted() && exit_code != exit_success) exit_code = interrupted_exit_code();
  try {
    keep_json_promise(exit_code);
    penstock::flush_output();
  } catch (const std::exception& error) {
    complain("penstock: {}\n", error.what());
    return exit_failure;
  }
  return exit_code;
}
