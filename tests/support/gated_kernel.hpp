// A gate that holds back chosen reads, and a kernel that has one.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

#include "support/forwarding_kernel.hpp"

namespace penstock::testing {

// Reads at chosen offsets wait while the gate is shut; others may fail.
class gate {
 public:
  status pass(std::uint64_t offset) {
    std::unique_lock guard(lock_);
    if (broken_.contains(offset)) return status::from_errno(EIO, "pread");
    if (gated_.contains(offset)) {
      ++waiting_;
      changed_.notify_all();
      changed_.wait(guard, [this] { return gated_.empty(); });
      --waiting_;
    }
    return {};
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
  std::mutex lock_;  // guards all members below
  std::condition_variable changed_;
  std::set<std::uint64_t> gated_;
  std::set<std::uint64_t> broken_;
  std::size_t waiting_ = 0;
};

class gated_kernel final : public forwarding_kernel {
 public:
  explicit gated_kernel(gate& before) : gate_(before) {}
  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    if (auto refused = gate_.pass(offset); !refused.ok()) return refused;
    return inner().pread(fd, target, length, offset);
  }

 private:
  gate& gate_;
};

}  // namespace penstock::testing
