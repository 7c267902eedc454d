#include "cli/common/interrupt.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>

namespace penstock::cli {
namespace {

std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

int wake_descriptor = -1;  // an eventfd, created before signals are handled and threads start

constexpr unsigned most_seconds_to_end = 10;

extern "C" void remember(int signal_number) {
  caught_signal.store(signal_number, std::memory_order_relaxed);
  const int before = errno;
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_descriptor, &one, sizeof one) == sizeof one);
  ::alarm(most_seconds_to_end);
  errno = before;
}

// Handles SIGALRM: the command did not exit in time, because it is waiting for something uninterruptible, such as a file system with an
// unreachable server. The first signal has its default action again by now.
extern "C" void end_at_last(int /*signal_number*/) { std::raise(caught_signal.load(std::memory_order_relaxed)); }

}  // namespace

void catch_interrupts() {
  wake_descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action {};
  action.sa_handler = remember;
  // SA_RESETHAND: the second signal triggers the default action and terminates the process.
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (const int signal_number : {SIGINT, SIGTERM}) {
    // If the parent ignores the signal (nohup, a shell's background job), keep ignoring it, including in programs that `run` starts.
    struct sigaction inherited {};
    sigaction(signal_number, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN) sigaction(signal_number, &action, nullptr);
  }
  action.sa_handler = end_at_last;
  sigaction(SIGALRM, &action, nullptr);
}

void end_at_first_interrupt() noexcept {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    struct sigaction action {};
    sigaction(signal_number, nullptr, &action);
    if (action.sa_handler == remember) std::signal(signal_number, SIG_DFL);
  }
  if (interrupted()) std::raise(caught_signal.load(std::memory_order_relaxed));
}

bool interrupted() noexcept { return caught_signal.load(std::memory_order_relaxed) != 0; }

int interrupt_descriptor() noexcept { return wake_descriptor; }

int interrupted_exit_code() noexcept { return 128 + caught_signal.load(std::memory_order_relaxed); }

}  // namespace penstock::cli
