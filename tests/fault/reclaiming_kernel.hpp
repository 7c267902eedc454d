// The real kernel, which keeps what an engine leaves behind on purpose when a ring has died: the ring, and staging memory that the ring may
// still write to. reclaim() brings it to rest and gives it back, so that a process can go through thousands of such deaths.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sys/kernel.hpp"

namespace penstock::testing {

class reclaiming_kernel final : public sys::kernel {
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
      (void)inner_->unmap(base, length);
    }
    mapped_.clear();
  }

  result<void*> map_memory(std::size_t length, int numa_node) override {
    auto base = inner_->map_memory(length, numa_node);
    const std::lock_guard guard(lock_);
    if (base) mapped_[*base] = length;
    return base;
  }
  status unmap(void* base, std::size_t length) override {
    {
      const std::lock_guard guard(lock_);
      mapped_.erase(base);
    }
    return inner_->unmap(base, length);
  }
  result<std::unique_ptr<sys::ring>> make_ring(unsigned entries) override {
    auto made = inner_->make_ring(entries);
    if (!made) return made.error();
    const std::lock_guard guard(lock_);
    rings_.push_back(std::move(*made));
    return std::unique_ptr<sys::ring>(std::make_unique<lent_ring>(*this, *rings_.back()));
  }

  result<int> open(const std::string& path, int flags, unsigned mode) override { return inner_->open(path, flags, mode); }
  result<int> reopen(int fd, int flags) override { return inner_->reopen(fd, flags); }
  status close(int fd) override { return inner_->close(fd); }
  result<sys::file_info> describe(int fd) override { return inner_->describe(fd); }
  result<int> descriptor_flags(int fd) override { return inner_->descriptor_flags(fd); }
  result<std::uint64_t> file_size(int fd) override { return inner_->file_size(fd); }
  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    return inner_->pread(fd, target, length, offset);
  }
  result<std::size_t> pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) override {
    return inner_->pwrite(fd, source, length, offset);
  }
  result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) override {
    return inner_->resident_bytes(fd, offset, length);
  }
  status drop_cache(int fd, std::uint64_t offset, std::uint64_t length) override { return inner_->drop_cache(fd, offset, length); }
  status sync_data(int fd) override { return inner_->sync_data(fd); }
  status truncate(int fd, std::uint64_t size_bytes) override { return inner_->truncate(fd, size_bytes); }
  result<void*> map_file(int fd, std::uint64_t offset, std::size_t length) override { return inner_->map_file(fd, offset, length); }
  unsigned usable_cores() override { return inner_->usable_cores(); }
  pci_device describe_pci(const std::string& address) override { return inner_->describe_pci(address); }
  std::vector<std::string> pci_addresses() override { return inner_->pci_addresses(); }
  bool path_exists(const std::string& path) override { return inner_->path_exists(path); }

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

   private:
    reclaiming_kernel& owner_;
    sys::ring& inner_;
  };

  void give_back(const sys::ring& done) {
    const std::lock_guard guard(lock_);
    std::erase_if(rings_, [&](const auto& each) { return each.get() == &done; });
  }

  std::shared_ptr<sys::kernel> inner_ = sys::make_kernel();
  std::mutex lock_;  // guards what follows
  std::vector<std::unique_ptr<sys::ring>> rings_;
  std::map<void*, std::size_t> mapped_;
};

}  // namespace penstock::testing
