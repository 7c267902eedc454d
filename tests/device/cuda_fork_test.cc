// Classifying memory must not hang a child that was forked while threads of its parent classified memory.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "device/device.hpp"

namespace penstock::testing {
namespace {

// How a child ended that asks once: 0, or by the signal of its alarm.
int ask_in_child(device::driver& driver, const void* memory) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(5);
    (void)driver.classify(memory);
    _exit(0);
  }
  int outcome = -1;
  waitpid(child, &outcome, 0);
  return outcome;
}

TEST(cuda_fork, a_child_may_ask_while_threads_of_its_parent_do) {
  const auto driver = device::make_cuda_driver();
  const std::array<std::byte, 64> memory{};
  std::atomic<bool> ended{false};
  std::vector<std::thread> askers;
  for (int i = 0; i < 4; ++i) {
    askers.emplace_back([&] {
      while (!ended.load()) (void)driver->classify(memory.data());
    });
  }
  int outcome = 0;
  for (int i = 0; i < 300 && outcome == 0; ++i) outcome = ask_in_child(*driver, memory.data());
  ended.store(true);
  for (auto& each : askers) each.join();
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace penstock::testing
