#include "sys/run_command.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "sys/peer.hpp"
#include "sys/uninterrupted.hpp"

namespace penstock::sys {

namespace {

using command_clock = std::chrono::steady_clock;

// A running command. The destructor kills its session and waits for it, unless ended() has already waited.
class started_command {
 public:
  explicit started_command(pid_t process) : process_(process) {}
  started_command(const started_command&) = delete;
  started_command& operator=(const started_command&) = delete;
  ~started_command() {
    if (process_ <= 0) return;
    kill(-process_, SIGKILL);
    (void)ended();
  }
  // Blocks until the command has exited.
  status ended() {
    int how = 0;
    const auto waited = uninterrupted([&] { return waitpid(process_, &how, 0); });
    process_ = -1;
    if (waited < 0 && errno == ECHILD) return {};  // this process ignores SIGCHLD, so there is no exit status
    if (waited < 0) return status::from_errno(errno, "waitpid");
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return {};
    if (WIFEXITED(how)) return {errc::io, fmt::format("the program exited with status {}", WEXITSTATUS(how))};
    return {errc::io, fmt::format("the program was killed by signal {}", WTERMSIG(how))};
  }

 private:
  pid_t process_;
};

result<pid_t> spawn_shell(const std::string& command, int output) {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  // Resets all signals to their defaults, even those that this thread blocks or this process ignores.
  sigset_t none{}, ordinary{};
  sigemptyset(&none);
  sigemptyset(&ordinary);
  for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGCHLD}) sigaddset(&ordinary, number);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &ordinary);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  std::string shell("/bin/sh"), option("-c"), text(command);
  const std::array<char*, 4> arguments{shell.data(), option.data(), text.data(), nullptr};
  pid_t process = -1;
  const int problem = posix_spawn(&process, shell.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (problem != 0) return status::from_errno(problem, "posix_spawn /bin/sh");
  return process;
}

// Reads the whole output.
result<std::string> read_output(int from, std::size_t most_bytes, command_clock::time_point deadline) {
  std::string text;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - command_clock::now()).count();
    pollfd wanted{from, POLLIN, 0};
    const int ready = poll(&wanted, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
    if (ready < 0 && errno != EINTR) return status::from_errno(errno, "poll");
    if (ready == 0) return status(errc::timed_out, "the program did not exit in time");
    if (ready < 0) continue;
    std::array<char, 4096> piece;
    const auto count = uninterrupted([&] { return ::read(from, piece.data(), piece.size()); });
    if (count < 0) return status::from_errno(errno, "read from the program");
    if (count == 0) return text;
    if (text.size() + static_cast<std::size_t>(count) > most_bytes)
      return status(errc::invalid_argument, fmt::format("the program printed more than {} bytes", most_bytes));
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace

result<std::string> run_command(const std::string& command, std::size_t most_bytes, std::chrono::milliseconds timeout) {
  const auto deadline = command_clock::now() + timeout;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return status::from_errno(errno, "pipe2");
  owned_descriptor output(ends[0]), input(ends[1]);
  const auto process = spawn_shell(command, input.get());
  if (!process) return process.error();
  input = owned_descriptor();
  started_command started(*process);
  auto printed = read_output(output.get(), most_bytes, deadline);
  if (!printed) return printed;
  if (auto problem = started.ended(); !problem.ok()) return problem;
  return printed;
}

}  // namespace penstock::sys
