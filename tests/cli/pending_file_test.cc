#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/program.hpp"
// The command is an executable, so these parts of it are compiled in here once more; io_pattern_test.cc has another that they need.
#include "cli/io_target.cc"     // NOLINT(bugprone-suspicious-include)
#include "cli/pending_file.cc"  // NOLINT(bugprone-suspicious-include)

namespace penstock::cli {
namespace {

using cli_test::scratch_directory;

class pending_file_test : public testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] result<pending_file> make() const { return pending_file::make(path_, GetParam()); }
  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out << std::ifstream(path_).rdbuf();
    return out.str();
  }
  static void fill(const pending_file& file, const std::string& text) {
    ASSERT_EQ(::write(file.fd(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  scratch_directory directory_;
  std::string path_ = directory_.path() + "/file";
};

TEST_P(pending_file_test, has_its_name_once_it_is_published) {
  auto made = make();
  ASSERT_TRUE(made) << made.error().message();
  fill(*made, "whole");
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(made->publish().ok());
  EXPECT_EQ(text(), "whole");
  EXPECT_EQ(directory_.entries(), 1U);
}

TEST_P(pending_file_test, replaces_what_was_there) {
  std::ofstream(path_) << "old";
  auto made = make();
  ASSERT_TRUE(made);
  fill(*made, "new");
  EXPECT_EQ(text(), "old");
  EXPECT_TRUE(made->publish().ok());
  EXPECT_EQ(text(), "new");
  EXPECT_EQ(directory_.entries(), 1U);
}

TEST_P(pending_file_test, keeps_what_has_come_meanwhile_where_that_is_asked_for) {
  {
    auto made = make();
    ASSERT_TRUE(made);
    fill(*made, "new");
    std::ofstream(path_) << "old";
    EXPECT_EQ(made->publish(false).message(), "give " + path_ + " its name: File exists (os 17)");
  }
  EXPECT_EQ(text(), "old");
  EXPECT_EQ(directory_.entries(), 1U);
  std::filesystem::remove(path_);
  auto made = make();
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->publish(false).ok());
  EXPECT_EQ(directory_.entries(), 1U);
}

TEST_P(pending_file_test, is_gone_where_it_was_not_published) {
  {
    auto made = make();
    ASSERT_TRUE(made);
    fill(*made, "half");
    const pending_file moved = *std::move(made);
    EXPECT_EQ(directory_.entries(), GetParam() ? 0U : 1U);
  }
  EXPECT_EQ(directory_.entries(), 0U);
}

TEST_P(pending_file_test, an_error_of_giving_it_its_name_leaves_nothing) {
  std::filesystem::create_directory(path_);
  {
    auto made = make();
    ASSERT_TRUE(made);
    EXPECT_EQ(made->publish().message(), "rename to " + path_ + ": Is a directory (os 21)");
  }
  EXPECT_EQ(directory_.entries(), 1U);
}

TEST_P(pending_file_test, a_folder_that_is_not_there_is_named) {
  const auto made = pending_file::make("/nowhere/file", GetParam());
  EXPECT_EQ(made.error().message(), "make a file in /nowhere: No such file or directory (os 2)");
}

TEST_P(pending_file_test, takes_the_longest_names) {
  std::string letters_of_three_bytes;
  for (int i = 0; i < 85; ++i) letters_of_three_bytes += "\u4e2d";
  for (const std::string& name : {std::string(255, 'n'), letters_of_three_bytes, std::string(255, '\xff')}) {
    for (int pass = 0; pass < 2; ++pass) {
      auto made = pending_file::make(directory_.path() + "/" + name, GetParam());
      ASSERT_TRUE(made) << made.error().message();
      const status error = made->publish();
      EXPECT_TRUE(error.ok()) << error.message();
    }
  }
  EXPECT_EQ(directory_.entries(), 3U);
}

TEST_P(pending_file_test, passes_by_hidden_names_that_an_earlier_process_has_left) {
  std::ofstream(path_) << "old";
  const std::string next = hidden_name(path_);
  const std::size_t dash = next.rfind('-') + 1;
  const unsigned number = static_cast<unsigned>(std::stoul(next.substr(dash)));
  for (unsigned i = 1; i <= 4; ++i) std::ofstream(next.substr(0, dash) + std::to_string(number + i)) << "left";
  auto made = make();
  ASSERT_TRUE(made) << made.error().message();
  fill(*made, "new");
  const status error = made->publish();
  EXPECT_TRUE(error.ok()) << error.message();
  EXPECT_EQ(text(), "new");
  EXPECT_EQ(directory_.entries(), 5U);
}

INSTANTIATE_TEST_SUITE_P(of, pending_file_test, testing::Bool(), [](const auto& test) { return test.param ? "no_name" : "hidden_name"; });

}  // namespace
}  // namespace penstock::cli
