// The output and the exit status of a program.
#include "sys/run_command.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace penstock::sys {
namespace {

constexpr auto long_enough = std::chrono::minutes(2);

TEST(run_command, hands_out_what_the_program_prints) {
  EXPECT_EQ(run_command("printf 'a b'; printf c >&2", 100, long_enough).value_or("failed"), "a b");
  EXPECT_EQ(run_command("true", 0, long_enough).value_or("failed"), "");
  EXPECT_EQ(run_command("cat", 100, long_enough).value_or("failed"), "");  // it has nothing to read
  EXPECT_EQ(run_command("head -c 100000 /dev/zero", 100000, long_enough).value_or("failed").size(), 100000U);
}

TEST(run_command, tells_how_it_ended_and_not_what_it_printed) {
  const auto failed = run_command("echo hush; exit 3", 100, long_enough);
  EXPECT_EQ(failed.error().code(), errc::io);
  EXPECT_EQ(failed.error().message(), "the program exited with status 3");
  EXPECT_EQ(run_command("echo hush; kill -9 $$", 100, long_enough).error().message(), "the program was killed by signal 9");
  EXPECT_EQ(run_command("/no/such/program", 100, long_enough).error().message(), "the program exited with status 127");
}

TEST(run_command, a_program_that_prints_too_much_is_ended) {
  EXPECT_EQ(run_command("cat /dev/zero", 1000, long_enough).error().code(), errc::invalid_argument);
}

TEST(run_command, a_program_that_does_not_end_is_killed_with_whom_it_started) {
  EXPECT_EQ(run_command("tail -f /dev/null & tail -f /dev/null", 100, std::chrono::milliseconds(50)).error().code(), errc::timed_out);
  EXPECT_EQ(run_command("tail -f /dev/null &", 100, std::chrono::milliseconds(50)).error().code(), errc::timed_out);
}

}  // namespace
}  // namespace penstock::sys
