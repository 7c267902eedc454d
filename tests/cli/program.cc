#include "cli/program.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>

namespace penstock::cli_test {
namespace {

[[noreturn]] void exec_child(const std::vector<std::string>& arguments, int out_fd, int err_fd) {
  std::vector<std::string> words{PENSTOCK_CLI_PATH};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::dup2(out_fd, STDOUT_FILENO);
  ::dup2(err_fd, STDERR_FILENO);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

std::string read_from_start(int fd) {
  std::string text;
  ::lseek(fd, 0, SEEK_SET);
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(count));
  return text;
}

int unnamed_file() {
  char name[] = "/tmp/penstock-test-XXXXXX";
  const int fd = ::mkostemp(name, O_CLOEXEC);
  if (fd >= 0) ::unlink(name);
  return fd;
}

}  // namespace

program::program(const std::vector<std::string>& arguments) : err_fd_(unnamed_file()) {
  int ends[2];
  if (err_fd_ < 0 || ::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe for the child");
  child_ = ::fork();
  if (child_ == 0) exec_child(arguments, ends[1], err_fd_);
  ::close(ends[1]);
  out_fd_ = ends[0];
}

program::~program() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  ::close(out_fd_);
  ::close(err_fd_);
}

bool program::read_more() {
  char buffer[4096];
  ssize_t count = 0;
  do {
    count = ::read(out_fd_, buffer, sizeof buffer);
  } while (count < 0 && errno == EINTR);
  if (count <= 0) return false;
  out_.append(buffer, static_cast<std::size_t>(count));
  return true;
}

bool program::wait_for_output(const std::string& text) {
  while (out_.find(text) == std::string::npos) {
    if (!read_more()) return false;
  }
  return true;
}

void program::send(int signal_number) const { ::kill(child_, signal_number); }

bool program::has_ended() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == child_;
}

void program::wait_until_it_catches(int signal_number) const {
  for (std::uint64_t caught = 0; (caught >> (signal_number - 1) & 1U) == 0;) {
    std::ifstream status("/proc/" + std::to_string(child_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigCgt:")) caught = std::stoull(line.substr(7), nullptr, 16);
      if (line.starts_with("State:\tZ")) return;
    }
    ::sched_yield();
  }
}

ended_program program::finish() {
  while (read_more()) {
  }
  int state = 0;
  while (::waitpid(child_, &state, 0) < 0 && errno == EINTR) {
  }
  child_ = -1;
  ended_program ended;
  ended.exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  ended.out = out_;
  ended.err = read_from_start(err_fd_);
  return ended;
}

ended_program run(const std::vector<std::string>& arguments) { return program(arguments).finish(); }

scratch_directory::scratch_directory() : path_("/tmp/penstock-test-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no directory for the test");
}

scratch_directory::~scratch_directory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string scratch_directory::make_file(const std::string& name, std::size_t bytes) const {
  const std::string path = path_ + "/" + name;
  std::mt19937_64 random(5);
  std::string content(bytes, '\0');
  for (char& byte : content) byte = static_cast<char>(random());
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::string scratch_directory::make_sparse_file(const std::string& name, std::size_t bytes) const {
  const std::string path = make_file(name, 0);
  std::filesystem::resize_file(path, bytes);
  return path;
}

std::size_t scratch_directory::entries() const {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
  return count;
}

}  // namespace penstock::cli_test
