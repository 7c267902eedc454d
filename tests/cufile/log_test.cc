#include "cufile/log.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "support/child.hpp"
#include "support/temp_dir.hpp"

namespace penstock::cufile {
namespace {

class cufile_log : public ::testing::Test {
 protected:
  // The settings of a log in the test's directory.
  settings at(log_level level) const {
    settings values;
    values.log_file = directory.file("cufile.log");
    values.words[CUFILE_PARAM_LOGGING_LEVEL] = to_string(level);
    return values;
  }

  std::vector<std::string> lines() const {
    std::ifstream file(directory.file("cufile.log"));
    std::vector<std::string> found;
    for (std::string line; std::getline(file, line);) found.push_back(line);
    return found;
  }

  std::uintmax_t file_bytes() const { return std::filesystem::file_size(directory.file("cufile.log")); }

  const testing::temp_dir directory;
  log journal;
};

TEST_F(cufile_log, a_line_has_time_process_thread_level_and_message) {
  ASSERT_TRUE(journal.open(at(log_level::error)).ok());
  journal.write(log_level::error, "read {} at {}", 4096, 8192);
  const auto written = lines();
  ASSERT_EQ(written.size(), 1U);
  const std::string rest = std::to_string(::getpid()) + ":" + std::to_string(::gettid()) + " ERROR read 4096 at 8192";
  EXPECT_TRUE(written.front().ends_with("Z " + rest)) << written.front();
  std::string time = written.front().substr(0, written.front().size() - rest.size());
  std::ranges::replace_if(
      time, [](unsigned char c) { return std::isdigit(c) != 0; }, '9');
  EXPECT_EQ(time, "9999-99-99T99:99:99.999999Z ");
}

TEST_F(cufile_log, holds_its_level_and_those_before_it) {
  for (int most = 0; most < log_level_count; ++most) {
    ASSERT_TRUE(journal.open(at(static_cast<log_level>(most))).ok());
    for (int i = 0; i < log_level_count; ++i) EXPECT_EQ(journal.wants(static_cast<log_level>(i)), i <= most);
  }
  ASSERT_TRUE(journal.open(at(log_level::warn)).ok());
  for (int i = 0; i < log_level_count; ++i) journal.write(static_cast<log_level>(i), "level {}", i);
  EXPECT_EQ(lines().size(), 3U);
}

TEST_F(cufile_log, is_silent_without_a_file) {
  EXPECT_FALSE(journal.wants(log_level::notice));
  ASSERT_TRUE(journal.open(settings()).ok());
  EXPECT_FALSE(journal.wants(log_level::notice));
  journal.write(log_level::notice, "nobody hears");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST_F(cufile_log, tells_once_that_its_file_cannot_be_opened_and_stays_silent) {
  settings values = at(log_level::trace);
  values.log_file = directory.file("missing/cufile.log");
  const status outcome = journal.open(values);
  EXPECT_EQ(outcome.code(), errc::not_found);
  EXPECT_NE(outcome.message().find("missing/cufile.log"), std::string_view::npos);
  EXPECT_FALSE(journal.wants(log_level::notice));
  journal.write(log_level::notice, "nobody hears");
}

TEST_F(cufile_log, a_pipe_without_a_reader_does_not_hold_the_program_up) {
  ASSERT_EQ(::mkfifo(directory.file("cufile.log").c_str(), 0600), 0);
  EXPECT_FALSE(journal.open(at(log_level::trace)).ok());
}

TEST_F(cufile_log, appends_to_what_is_there) {
  std::ofstream(directory.file("cufile.log")) << "earlier\n";
  ASSERT_TRUE(journal.open(at(log_level::error)).ok());
  journal.write(log_level::error, "later");
  const auto written = lines();
  ASSERT_EQ(written.size(), 2U);
  EXPECT_EQ(written.front(), "earlier");
}

TEST_F(cufile_log, starts_again_from_empty_at_its_limit) {
  settings values = at(log_level::info);
  values.log_max_bytes = 1000;
  ASSERT_TRUE(journal.open(values).ok());
  for (int i = 0; i < 100; ++i) {
    journal.write(log_level::info, "line {}", i);
    ASSERT_LE(file_bytes(), 1000U);
  }
  EXPECT_TRUE(lines().back().ends_with("line 99"));
}

TEST_F(cufile_log, grows_without_limit_when_told_so) {
  settings values = at(log_level::info);
  values.log_max_bytes = std::numeric_limits<std::uint64_t>::max();
  ASSERT_TRUE(journal.open(values).ok());
  for (int i = 0; i < 100; ++i) journal.write(log_level::info, "line {}", i);
  EXPECT_EQ(lines().size(), 100U);
}

TEST_F(cufile_log, is_silent_once_closed_and_holds_no_descriptor) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open_files("/proc/self/fd");
    return std::distance(begin(open_files), end(open_files));
  };
  const auto before = descriptors();
  ASSERT_TRUE(journal.open(at(log_level::error)).ok());
  ASSERT_TRUE(journal.open(at(log_level::error)).ok());
  EXPECT_EQ(descriptors(), before + 1);
  journal.write(log_level::error, "one");
  journal.close();
  EXPECT_EQ(descriptors(), before);
  EXPECT_FALSE(journal.wants(log_level::notice));
  journal.write(log_level::error, "two");
  journal.close();
  EXPECT_EQ(lines().size(), 1U);
}

TEST_F(cufile_log, a_program_that_is_started_does_not_inherit_it) {
  ASSERT_TRUE(journal.open(at(log_level::error)).ok());
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone) != directory.file("cufile.log")) continue;
    ++found;
    EXPECT_NE(::fcntl(std::stoi(entry.path().filename()), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(found, 1);
}

TEST_F(cufile_log, control_characters_make_no_lines) {
  ASSERT_TRUE(journal.open(at(log_level::error)).ok());
  journal.write(log_level::error, "name {}", "a\nb\x1b[31m\x7f");
  const auto written = lines();
  ASSERT_EQ(written.size(), 1U);
  EXPECT_TRUE(written.front().ends_with("name a?b?[31m?"));
}

TEST_F(cufile_log, leaves_errno_alone) {
  ASSERT_TRUE(journal.open(at(log_level::error)).ok());
  errno = 5022;
  journal.write(log_level::error, "line");
  EXPECT_EQ(errno, 5022);
  settings full = at(log_level::error);
  full.log_file = "/dev/full";
  ASSERT_TRUE(journal.open(full).ok());
  errno = 5022;
  journal.write(log_level::error, "lost");
  EXPECT_EQ(errno, 5022);
}

TEST_F(cufile_log, lines_of_several_threads_stay_whole) {
  ASSERT_TRUE(journal.open(at(log_level::info)).ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 250; ++n) journal.write(log_level::info, "thread {} {} end", i, std::string(100, 'x'));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto written = lines();
  EXPECT_EQ(written.size(), 1000U);
  for (const std::string& line : written) EXPECT_TRUE(line.ends_with(" end")) << line;
}

TEST_F(cufile_log, may_be_opened_and_closed_while_threads_write) {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!done) journal.write(log_level::info, "line end");
    });
  }
  for (int round = 0; round < 200; ++round) {
    EXPECT_TRUE(journal.open(at(log_level::info)).ok());
    journal.close();
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  for (const std::string& line : lines()) EXPECT_TRUE(line.ends_with("line end")) << line;
}

TEST_F(cufile_log, a_forked_child_writes_under_its_own_number) {
  ASSERT_TRUE(journal.open(at(log_level::error)).ok());
  journal.write(log_level::error, "parent");
  ASSERT_EQ(testing::run_in_child([&] {
              journal.write(log_level::error, "child");
              return 0;
            }),
            0);
  journal.write(log_level::error, "parent");
  const auto written = lines();
  ASSERT_EQ(written.size(), 3U);
  const std::string own = " " + std::to_string(::getpid()) + ":";
  EXPECT_NE(written[0].find(own), std::string::npos);
  EXPECT_EQ(written[1].find(own), std::string::npos);
  EXPECT_NE(written[2].find(own), std::string::npos);
}

TEST_F(cufile_log, a_forked_child_may_close_and_open_it_again) {
  ASSERT_TRUE(journal.open(at(log_level::error)).ok());
  ASSERT_EQ(testing::run_in_child([&] {
              journal.close();
              journal.write(log_level::error, "closed");
              if (!journal.open(at(log_level::error)).ok()) return 1;
              journal.write(log_level::error, "child");
              return 0;
            }),
            0);
  journal.write(log_level::error, "parent");
  EXPECT_EQ(lines().size(), 2U);
}

}  // namespace
}  // namespace penstock::cufile
