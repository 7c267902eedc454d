// Memory runs out while descriptors of a file that the program has locked are closed: the lock stays, and no descriptor leaks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "memory/failing_allocations.hpp"
#include "support/child.hpp"
#include "support/open_descriptors.hpp"
#include "support/temp_dir.hpp"
#include "sys/kernel.hpp"

namespace penstock::testing::locked_file_memory {
namespace {

class locked_file_memory : public ::testing::Test {
 protected:
  locked_file_memory() { lock(F_WRLCK); }
  ~locked_file_memory() override { ::close(lent_); }

  static struct flock whole(short type) {
    struct flock asked {};
    asked.l_type = type;
    asked.l_whence = SEEK_SET;
    return asked;
  }
  void lock(short type) {
    auto asked = whole(type);
    EXPECT_EQ(fcntl(lent_, F_SETLK, &asked), 0);
  }
  // As another process sees it.
  bool locked() {
    return run_in_child([&] {
             auto asked = whole(F_WRLCK);
             return fcntl(lent_, F_GETLK, &asked) == 0 && asked.l_type != F_UNLCK ? 1 : 0;
           }) == 1;
  }
  std::vector<int> opened(std::size_t count) {
    std::vector<int> all;
    for (std::size_t i = 0; i < count; ++i) {
      const auto fd = kernel_->reopen(lent_, O_RDONLY);
      if (!fd.ok()) ADD_FAILURE() << fd.error().message();
      all.push_back(fd.ok() ? *fd : -1);
    }
    return all;
  }
  // Without an allocation that works. Returns those that are still the caller's.
  std::vector<int> closed_without_memory(const std::vector<int>& all) {
    std::vector<int> refused;
    refused.reserve(all.size());
    for (const int fd : all) {
      const failing_allocations armed(allocations_of::the_caller, 1, true);
      if (!kernel_->close(fd).ok()) refused.push_back(fd);
    }
    return refused;
  }
  // Each close of a file that is not locked looks at some of those that were kept.
  void unlock_and_let_go_of(std::size_t count) {
    lock(F_UNLCK);
    for (std::size_t i = 0; i < count; ++i) {
      const auto fd = kernel_->open("/dev/null", O_RDONLY, 0);
      EXPECT_TRUE(kernel_->close(*fd).ok());
    }
  }

  temp_dir dir_ = temp_dir::on_build_disk();
  int lent_ = ::open(dir_.file("data").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  std::shared_ptr<sys::kernel> kernel_ = sys::make_kernel();
};

TEST_F(locked_file_memory, descriptors_that_are_closed_without_memory_are_kept_until_the_lock_goes) {
  const auto before = descriptor_names_now();
  const auto all = opened(32);
  EXPECT_EQ(closed_without_memory(all), std::vector<int>());
  EXPECT_TRUE(locked());
  unlock_and_let_go_of(all.size());
  EXPECT_EQ(opened_since(before, descriptor_names_now()), "");
}

TEST_F(locked_file_memory, a_descriptor_for_which_there_is_no_room_can_be_closed_once_there_is_memory) {
  const auto before = descriptor_names_now();
  const auto all = opened(100);
  const auto refused = closed_without_memory(all);
  EXPECT_FALSE(refused.empty());
  EXPECT_TRUE(locked());
  for (const int fd : refused) EXPECT_TRUE(kernel_->close(fd).ok());
  EXPECT_TRUE(locked());
  unlock_and_let_go_of(all.size());
  EXPECT_EQ(opened_since(before, descriptor_names_now()), "");
}

}  // namespace
}  // namespace penstock::testing::locked_file_memory
