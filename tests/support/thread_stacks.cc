#include "support/thread_stacks.hpp"

#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace penstock::testing {
namespace {

std::atomic<bool> printed{false};

void print_own_stack(int) {
  std::array<void*, 64> frames;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  printed = true;
}

std::string name_of(pid_t thread) {
  std::ifstream from("/proc/self/task/" + std::to_string(thread) + "/comm");
  std::string name;
  std::getline(from, name);
  return name;
}

// Loads what backtrace() needs, which a signal handler must not do.
void make_backtrace_ready() {
  std::array<void*, 4> frames;
  (void)backtrace(frames.data(), static_cast<int>(frames.size()));
}

std::terminate_handler usual_end = nullptr;

[[noreturn]] void print_stack_and_end() {
  std::fprintf(stderr, "an exception ends thread %s\n", name_of(static_cast<pid_t>(syscall(SYS_gettid))).c_str());
  print_own_stack(0);
  usual_end();
  std::abort();
}

}  // namespace

void print_stack_of_uncaught_exceptions() {
  make_backtrace_ready();
  const auto before = std::set_terminate(print_stack_and_end);
  if (before != print_stack_and_end) usual_end = before;
}

void print_thread_stacks() {
  make_backtrace_ready();
  struct sigaction action {};
  action.sa_handler = print_own_stack;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
  std::error_code ignored;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    const auto thread = static_cast<pid_t>(std::stol(each.path().filename().string()));
    std::fprintf(stderr, "thread %d (%s)\n", thread, name_of(thread).c_str());
    printed = false;
    if (syscall(SYS_tgkill, getpid(), thread, SIGUSR2) != 0) continue;
    for (int i = 0; i < 100 && !printed; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace penstock::testing
