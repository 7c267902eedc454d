// Progress in a terminal. Fast operations show each phase once, at its beginning.
#include <gtest/gtest.h>

#include <sstream>

#include "cli/program.hpp"
#include "cli/terminal.hpp"

namespace penstock::cli_test {
namespace {

std::vector<std::string> reading(const scratch_directory& directory) {
  return {"read", directory.make_file("data", 64 * mib), "--verify", "--device", "host:0"};
}

TEST(progress, names_the_phase_in_a_terminal) {
  const scratch_directory directory;
  const std::string read = run_in_terminal(reading(directory));
  EXPECT_TRUE(contains(read, "\rhashing ")) << read;
  EXPECT_TRUE(contains(read, "% of 64 MiB")) << read;
  const std::string written =
      run_in_terminal({"write", directory.path() + "/new", "--size", "64MiB", "--verify", "--device", "host:0", "--quiet"});
  EXPECT_FALSE(contains(written, "\r\033[K")) << written;
  const std::string filled = run_in_terminal({"write", directory.path() + "/new", "--force", "--size", "64MiB", "--device", "host:0"});
  EXPECT_TRUE(contains(filled, "\rfilling ")) << filled;
}

TEST(progress, keeps_to_the_width_of_the_terminal) {
  const scratch_directory directory;
  for (const unsigned short columns : {30, 50, 120}) {
    std::istringstream shown(run_in_terminal(reading(directory), {"xterm", columns}));
    std::string line;
    bool any = false;
    while (std::getline(shown, line, '\r')) {
      const std::size_t end = line.find("\033[K");
      if (end == std::string::npos) continue;
      any = any || end > 0;
      EXPECT_LT(end, columns) << line;
    }
    EXPECT_TRUE(any) << columns;
  }
}

TEST(progress, is_not_shown_where_it_cannot_be_or_is_not_wanted) {
  const scratch_directory directory;
  for (const char* term : {"dumb", ""}) {
    const std::string shown = run_in_terminal(reading(directory), {term, 80});
    EXPECT_TRUE(contains(shown, ", verified")) << shown;
    EXPECT_FALSE(contains(shown, "\033")) << shown;
  }
  auto quiet = reading(directory);
  quiet.emplace_back("--quiet");
  EXPECT_FALSE(contains(run_in_terminal(quiet), "\033"));
}

}  // namespace
}  // namespace penstock::cli_test
