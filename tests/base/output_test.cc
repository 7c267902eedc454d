// Output to standard error is printed or dropped: it never throws, ends the process, or goes into a file of the program.
#include "base/output.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <functional>
#include <string>

namespace penstock {
namespace {

// Gives another file the number of standard error until the end of its scope.
class other_standard_error {
 public:
  explicit other_standard_error(const std::function<void()>& change) : kept_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10)) {
    EXPECT_GE(kept_, 0);
    change();
  }
  other_standard_error(const other_standard_error&) = delete;
  other_standard_error& operator=(const other_standard_error&) = delete;
  ~other_standard_error() {
    ::dup2(kept_, STDERR_FILENO);
    ::close(kept_);
  }

 private:
  int kept_;
};

class unnamed_file {
 public:
  unnamed_file() {
    char name[] = "/tmp/penstock-test-XXXXXX";
    fd_ = ::mkostemp(name, O_CLOEXEC);
    EXPECT_GE(fd_, 0);
    ::unlink(name);
  }
  unnamed_file(const unnamed_file&) = delete;
  unnamed_file& operator=(const unnamed_file&) = delete;
  ~unnamed_file() { ::close(fd_); }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] std::string content() const {
    std::array<char, 256> bytes{};
    const auto count = ::pread(fd_, bytes.data(), bytes.size(), 0);
    return {bytes.data(), static_cast<std::size_t>(count > 0 ? count : 0)};
  }

 private:
  int fd_ = -1;
};

struct lost_stream {
  const char* name;
  std::function<void()> change;
};

const std::array lost_streams{
    lost_stream{"closed", [] { ::close(STDERR_FILENO); }},
    lost_stream{"full disk",
                [] {
                  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
                  ::dup2(full, STDERR_FILENO);
                  ::close(full);
                }},
    lost_stream{"opened for reading",
                [] {
                  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
                  ::dup2(null, STDERR_FILENO);
                  ::close(null);
                }},
    lost_stream{"a pipe that nobody reads",
                [] {
                  std::array<int, 2> ends{};
                  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
                  ::dup2(ends[1], STDERR_FILENO);
                  for (const int each : ends) ::close(each);
                }},
};

TEST(printed_errors, are_dropped_where_they_cannot_be_written) {
  const auto before = std::signal(SIGPIPE, SIG_DFL);  // which would end this process
  for (const lost_stream& each : lost_streams) {
    const other_standard_error lost(each.change);
    errno = ENOTTY;
    print_error("lost\n");
    EXPECT_EQ(errno, ENOTTY) << each.name;
  }
  std::signal(SIGPIPE, before);
}

TEST(printed_errors, go_where_the_program_has_sent_them) {
  const unnamed_file log;
  {
    const other_standard_error moved([&] { ::dup2(log.get(), STDERR_FILENO); });
    print_error("one\n");
    print_error("two\n");
  }
  EXPECT_EQ(log.content(), "one\ntwo\n");
}

TEST(printed_errors, never_go_into_a_file_that_happens_to_have_their_number) {
  const unnamed_file data;
  {
    const other_standard_error taken([&] { ::dup3(data.get(), STDERR_FILENO, O_CLOEXEC); });  // as open() gives it to the next file
    print_error("lost\n");
  }
  EXPECT_EQ(data.content(), "");
}

TEST(printed_output, names_the_stream_that_fails_and_why) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  const int kept = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
  std::fflush(stdout);
  ::dup2(full, STDOUT_FILENO);
  std::string said;
  try {
    print_output("lost");
    flush_output();
  } catch (const output_failure& failure) {
    said = failure.what();
  }
  ::dup2(kept, STDOUT_FILENO);
  std::clearerr(stdout);
  for (const int each : {full, kept}) ::close(each);
  EXPECT_EQ(said, "cannot write to standard output: No space left on device");
}

}  // namespace
}  // namespace penstock
