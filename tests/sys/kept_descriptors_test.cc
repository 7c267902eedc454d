// Which of the program's record locks and leases survive when the library opens and closes descriptors of a file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/child.hpp"
#include "support/open_descriptors.hpp"
#include "support/temp_dir.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys {
namespace {

using penstock::testing::open_descriptors;
using penstock::testing::run_in_child;
using penstock::testing::temp_dir;

class kept_descriptors_test : public ::testing::Test {
 protected:
  kept_descriptors_test() { std::ofstream(path_) << std::string(10000, 'x'); }
  ~kept_descriptors_test() override { ::close(lent_); }

  static struct flock range(short type, off_t start = 0, off_t length = 0) {
    struct flock asked {};
    asked.l_type = type;
    asked.l_whence = SEEK_SET;
    asked.l_start = start;
    asked.l_len = length;
    return asked;
  }
  void lock(short type, off_t start = 0, off_t length = 0) {
    auto asked = range(type, start, length);
    ASSERT_EQ(fcntl(lent_, F_SETLK, &asked), 0);
  }
  // As another process sees it.
  bool locked(off_t start = 0, off_t length = 0) {
    return run_in_child([&] {
             auto asked = range(F_WRLCK, start, length);
             return fcntl(lent_, F_GETLK, &asked) == 0 && asked.l_type != F_UNLCK ? 1 : 0;
           }) == 1;
  }
  void reopen_and_close(int flags) {
    const auto second = kernel_->reopen(lent_, flags);
    ASSERT_TRUE(second.ok()) << second.error().message();
    EXPECT_TRUE(kernel_->close(*second).ok());
  }

  temp_dir dir_ = temp_dir::on_build_disk();
  std::string path_ = dir_.file("data");
  int lent_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  std::shared_ptr<kernel> kernel_ = make_kernel();
};

TEST_F(kept_descriptors_test, record_locks_outlive_descriptors_and_the_kernel_object) {
  for (const auto& [type, start, length] : {std::tuple<short, off_t, off_t>{F_WRLCK, 0, 0}, {F_RDLCK, 0, 0}, {F_WRLCK, 5000, 10}}) {
    lock(type, start, length);
    reopen_and_close(O_RDWR);
    EXPECT_TRUE(locked(start, 10));
    const auto by_name = kernel_->open(path_, O_RDONLY, 0);
    EXPECT_TRUE(kernel_->close(*by_name).ok());
    EXPECT_TRUE(locked(start, 10));
    kernel_ = make_kernel();
    EXPECT_TRUE(locked(start, 10));
    lock(F_UNLCK);
  }
}

TEST_F(kept_descriptors_test, a_kept_descriptor_serves_again_and_goes_with_the_locks) {
  const auto before = open_descriptors();
  lock(F_WRLCK);
  for (int i = 0; i < 1000; ++i) {
    reopen_and_close(i % 2 == 0 ? O_RDONLY : O_RDWR);
    const auto by_name = kernel_->open(path_, O_RDONLY, 0);
    EXPECT_TRUE(kernel_->close(*by_name).ok());
  }
  EXPECT_EQ(open_descriptors(), before + 2);
  EXPECT_TRUE(locked());
  lock(F_UNLCK);
  reopen_and_close(O_RDONLY);
  EXPECT_LE(open_descriptors(), before + 1);
  const auto other = kernel_->open(dir_.file("other"), O_RDWR | O_CREAT, 0600);
  EXPECT_TRUE(kernel_->close(*other).ok());
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(kept_descriptors_test, without_locks_every_descriptor_is_closed) {
  const auto before = open_descriptors();
  for (int i = 0; i < 1000; ++i) reopen_and_close(O_RDWR);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(kept_descriptors_test, a_kept_descriptor_with_other_flags_is_not_used) {
  lock(F_WRLCK);
  reopen_and_close(O_RDWR);
  const auto second = kernel_->reopen(lent_, O_RDWR | O_DSYNC);
  ASSERT_TRUE(second.ok());
  EXPECT_NE(fcntl(*second, F_GETFL) & O_DSYNC, 0);
  EXPECT_TRUE(kernel_->close(*second).ok());
}

TEST_F(kept_descriptors_test, a_forked_child_closes_what_it_has) {
  lock(F_WRLCK);
  reopen_and_close(O_RDWR);
  const int second = *kernel_->reopen(lent_, O_RDONLY);
  EXPECT_EQ(run_in_child([&] { return kernel_->close(second).ok() && fcntl(second, F_GETFD) < 0 ? 0 : 1; }), 0);
  EXPECT_TRUE(locked());
  EXPECT_TRUE(kernel_->close(second).ok());
}

// Gives its lease up when it is asked to.
class lease_of_another_process {
 public:
  lease_of_another_process(const std::string& path, int type) {
    int ready[2];
    if (::pipe(ready) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      sigset_t asked;
      sigemptyset(&asked);
      sigaddset(&asked, SIGIO);
      sigprocmask(SIG_BLOCK, &asked, nullptr);
      const int fd = ::open(path.c_str(), type == F_RDLCK ? O_RDONLY : O_RDWR);
      const char holds = fcntl(fd, F_SETLEASE, type) == 0 ? 1 : 0;
      if (::write(ready[1], &holds, 1) != 1 || holds == 0) _exit(1);
      alarm(60);
      int signal = 0;
      sigwait(&asked, &signal);
      _exit(fcntl(fd, F_SETLEASE, F_UNLCK) == 0 ? 0 : 1);
    }
    char holds = 0;
    holds_ = ::read(ready[0], &holds, 1) == 1 && holds != 0;
    ::close(ready[0]);
    ::close(ready[1]);
  }
  lease_of_another_process(const lease_of_another_process&) = delete;
  lease_of_another_process& operator=(const lease_of_another_process&) = delete;
  ~lease_of_another_process() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  [[nodiscard]] bool holds() const { return holds_; }

 private:
  pid_t child_ = -1;
  bool holds_ = false;
};

TEST_F(kept_descriptors_test, opening_a_leased_file_waits_until_the_lease_is_given_up) {
  for (const auto& [lease, flags] : {std::pair{F_WRLCK, O_RDONLY}, {F_RDLCK, O_RDWR}}) {
    const auto leased = dir_.file(lease == F_WRLCK ? "write" : "read");
    std::ofstream(leased) << "x";
    const lease_of_another_process holder(leased, lease);
    if (!holder.holds()) GTEST_SKIP() << "the file system has no leases";
    const auto opened = kernel_->open(leased, flags | O_NONBLOCK, 0);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    EXPECT_TRUE(kernel_->close(*opened).ok());
  }
}

TEST_F(kept_descriptors_test, a_second_open_does_not_break_the_lease_of_the_first) {
  const auto leased = dir_.file("own");
  const int fd = ::open(leased.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fcntl(fd, F_SETLEASE, F_WRLCK) != 0) GTEST_SKIP() << "the file system has no leases";
  EXPECT_EQ(kernel_->reopen(fd, O_RDONLY).error().code(), errc::would_block);
  EXPECT_EQ(fcntl(fd, F_GETLEASE), F_WRLCK);
  ::close(fd);
}

}  // namespace
}  // namespace penstock::sys
