// A kernel with a gate before chosen reads, which keeps whoever comes there waiting.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

#include "support/forwarding_kernel.hpp"

namespace penstock::testing {

// Reads of chosen offsets wait while its gate is shut; others may fail.
class gated_kernel final : public forwarding_kernel {
 public:
  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    {
      std::unique_lock guard(lock_);
      if (broken_.contains(offset)) return status::from_errno(EIO, "pread");
      if (gated_.contains(offset)) {
        ++waiting_;
        changed_.notify_all();
        changed_.wait(guard, [this] { return gated_.empty(); });
        --waiting_;
      }
    }
    return inner().pread(fd, target, length, offset);
  }
  void shut(std::set<std::uint64_t> offsets) {
    const std::lock_guard guard(lock_);
    gated_ = std::move(offsets);
  }
  void open() {
    const std::lock_guard guard(lock_);
    gated_.clear();
    changed_.notify_all();
  }
  void fail(std::uint64_t offset) {
    const std::lock_guard guard(lock_);
    broken_.insert(offset);
  }
  void await(std::size_t readers) {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [&] { return waiting_ == readers; });
  }

 private:
  std::mutex lock_;  // guards what follows
  std::condition_variable changed_;
  std::set<std::uint64_t> gated_;
  std::set<std::uint64_t> broken_;
  std::size_t waiting_ = 0;
};

}  // namespace penstock::testing
