// The real kernel, which also takes over what an engine leaks on purpose after a ring failed: the ring, and staging memory that the ring
// may still write to. reclaim() quiesces and frees it, so that a process can survive thousands of such failures.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "support/forwarding_kernel.hpp"

namespace penstock::testing {

class reclaiming_kernel final : public forwarding_kernel {
 public:
  // To be called when nothing uses this kernel any more, and never will. forget is told the start of each piece of memory before it goes.
  void reclaim(const std::function<void(void*)>& forget) {
    const std::lock_guard guard(lock_);
    for (auto& each : rings_) {
      std::array<sys::ring_completion, 64> lost;
      while (each->reap(lost, true).value_or(0) > 0) {
      }
    }
    rings_.clear();
    for (const auto& [base, length] : mapped_) {
      forget(base);
      (void)inner().unmap(base, length);
    }
    mapped_.clear();
  }

  result<void*> map_memory(std::size_t length, int numa_node) override {
    auto base = inner().map_memory(length, numa_node);
    const std::lock_guard guard(lock_);
    if (base) mapped_[*base] = length;
    return base;
  }
  status unmap(void* base, std::size_t length) override {
    {
      const std::lock_guard guard(lock_);
      mapped_.erase(base);
    }
    return inner().unmap(base, length);
  }
  result<std::unique_ptr<sys::ring>> make_ring(unsigned entries) override {
    auto made = inner().make_ring(entries);
    if (!made) return made.error();
    const std::lock_guard guard(lock_);
    rings_.push_back(std::move(*made));
    return std::unique_ptr<sys::ring>(std::make_unique<lent_ring>(*this, *rings_.back()));
  }

 private:
  // A ring whose owner may forget it.
  class lent_ring final : public sys::ring {
   public:
    lent_ring(reclaiming_kernel& owner, sys::ring& inner) : owner_(owner), inner_(inner) {}
    lent_ring(const lent_ring&) = delete;
    lent_ring& operator=(const lent_ring&) = delete;
    ~lent_ring() override { owner_.give_back(inner_); }
    status register_buffer(unsigned slot, void* base, std::size_t length) override { return inner_.register_buffer(slot, base, length); }
    bool queue_read(int fd, void* target, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int buffer_slot) override {
      return inner_.queue_read(fd, target, length, offset, token, buffer_slot);
    }
    bool queue_write(int fd, const void* source, std::uint32_t length, std::uint64_t offset, std::uint64_t token,
                     int buffer_slot) override {
      return inner_.queue_write(fd, source, length, offset, token, buffer_slot);
    }
    status submit() override { return inner_.submit(); }
    result<std::size_t> reap(std::span<sys::ring_completion> out, bool wait) override { return inner_.reap(out, wait); }
    void interrupt() noexcept override { inner_.interrupt(); }

   private:
    reclaiming_kernel& owner_;
    sys::ring& inner_;
  };

  void give_back(const sys::ring& done) {
    const std::lock_guard guard(lock_);
    std::erase_if(rings_, [&](const auto& each) { return each.get() == &done; });
  }

  std::mutex lock_;  // guards what follows
  std::vector<std::unique_ptr<sys::ring>> rings_;
  std::map<void*, std::size_t> mapped_;
};

}  // namespace penstock::testing
