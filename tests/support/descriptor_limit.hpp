// Lowers this process's descriptor limit while it lives, and can use up the descriptors that are left.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

namespace penstock::testing {

class descriptor_limit {
 public:
  explicit descriptor_limit(rlim_t most) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit less{most, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &less), 0);
  }
  descriptor_limit(const descriptor_limit&) = delete;
  descriptor_limit& operator=(const descriptor_limit&) = delete;
  ~descriptor_limit() {
    give_back();
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0);
  }
  void take_all() {
    for (int fd = ::dup(STDIN_FILENO); fd >= 0; fd = ::dup(STDIN_FILENO)) taken_.push_back(fd);
  }
  void give_back() {
    for (const int fd : taken_) ::close(fd);
    taken_.clear();
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

}  // namespace penstock::testing
