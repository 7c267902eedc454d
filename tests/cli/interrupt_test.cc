// Ctrl-C and SIGTERM while a command waits for input that never comes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "cli/program.hpp"

namespace penstock::cli_test {
namespace {

using words = std::vector<std::string>;

class interrupt : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::mkfifo(fifo_.c_str(), 0600), 0); }
  [[nodiscard]] std::vector<words> readers() const {
    return {{"verify", "-c", fifo_}, {"io", fifo_}, {"bench", "--report", directory_.path() + "/page", "--from", fifo_}};
  }
  scratch_directory directory_;
  const std::string fifo_ = directory_.path() + "/fifo";
};

TEST_F(interrupt, the_first_ends_a_command_that_waits_for_the_other_end_of_a_fifo) {
  for (const words& each : readers()) {
    for (const int signal_number : {SIGINT, SIGTERM}) {
      program waiting(each);
      waiting.wait_until_it_catches(signal_number);
      waiting.send(signal_number);
      const auto ended = waiting.finish();
      EXPECT_EQ(ended.exit_code, 128 + signal_number) << each.front() << ": " << ended.err;
      EXPECT_EQ(ended.err, "") << each.front();
    }
  }
}

TEST_F(interrupt, the_first_ends_a_command_that_reads_from_a_silent_fifo) {
  for (const words& each : readers()) {
    program waiting(each);
    const int other_end = ::open(fifo_.c_str(), O_WRONLY | O_CLOEXEC);  // waits until the command has opened its end
    ASSERT_GE(other_end, 0);
    waiting.send(SIGINT);
    EXPECT_EQ(waiting.finish().exit_code, 130) << each.front();
    ::close(other_end);
  }
}

TEST_F(interrupt, the_first_ends_a_command_that_reads_from_silent_standard_input) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const int input = ::dup(STDIN_FILENO);
  ASSERT_EQ(::dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
  program waiting({"verify", "-c", "-"});
  input >= 0 ? ::dup2(input, STDIN_FILENO) : ::close(STDIN_FILENO);
  waiting.wait_until_it_catches(SIGINT);
  waiting.send(SIGINT);
  EXPECT_EQ(waiting.finish().exit_code, 130);
  for (const int each : {ends[0], ends[1], input}) ::close(each);
}

// It has nothing to remove.
TEST_F(interrupt, the_first_ends_a_benchmark_of_pipes) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    program measuring({"pipe-bench", "--sizes", "4KiB", "--seconds", "1000"});
    EXPECT_TRUE(measuring.wait_for_output("from"));
    measuring.send(signal_number);
    EXPECT_NE(measuring.finish().exit_code, 0);
  }
}

TEST_F(interrupt, a_list_comes_through_a_fifo_as_it_does_from_a_file) {
  const std::string data = directory_.make_file("data", 10);
  const std::string list = run({"verify", data}).out;
  program checking({"verify", "-c", fifo_});
  const int other_end = ::open(fifo_.c_str(), O_WRONLY | O_CLOEXEC);
  EXPECT_EQ(::write(other_end, list.data(), 20), 20);
  EXPECT_EQ(::write(other_end, list.data() + 20, list.size() - 20), static_cast<ssize_t>(list.size() - 20));
  ::close(other_end);
  const auto ended = checking.finish();
  EXPECT_EQ(ended.out, data + ": OK\n") << ended.err;
}

}  // namespace
}  // namespace penstock::cli_test
