// The screen of penstock top, of lists that a test makes: lines are whatever they are of however many processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/observed.cc"  // NOLINT(bugprone-suspicious-include)
#include "cli/top_view.cc"  // NOLINT(bugprone-suspicious-include)

namespace penstock::cli {
namespace {

bool any_has(const std::vector<std::string>& lines, const std::string& text) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

TEST(top_view, several_processes_of_other_versions_are_one_line) {
  const std::vector<status> problems{{errc::unsupported, "process 7 runs Penstock 9"},
                                     {errc::permission_denied, "a folder is open to others"},
                                     {errc::unsupported, "process 8 runs Penstock 9"},
                                     {errc::unsupported, "process 9 runs Penstock 8"}};
  const auto lines = top_lines({}, problems, {});
  EXPECT_TRUE(any_has(lines, "3 processes run other versions of Penstock: `penstock stats` names them")) << lines.back();
  EXPECT_TRUE(any_has(lines, "open to others"));
  EXPECT_FALSE(any_has(lines, "process 8"));
  EXPECT_TRUE(any_has(top_lines({}, {problems[0]}, {}), "process 7 runs Penstock 9"));
}

}  // namespace
}  // namespace penstock::cli
